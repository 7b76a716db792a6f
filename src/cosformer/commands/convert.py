"""``cosformer convert``: a pretrained model with its attention replaced and its weights kept."""

import argparse
from pathlib import Path

from cosformer.extras import require
from cosformer.suggest import check_model_path


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a directory with a saved model, or a name on the Hugging Face hub")
    add("out", metavar="OUT", type=Path, help="where to write the converted model (new or empty)")
    add(
        "--attention",
        default="cosformer",
        help="cosformer (default) or softmax; for a cosformer model any attention of the zoo",
    )
    add("--max-len", type=int, help="the paper's M, the longest sequence (default: the model's own longest)")


def run(args: argparse.Namespace) -> int:
    check_model_path(args.source)
    require("hf", "transformers")
    from cosformer.hf import convert

    for note in convert(args.source, args.out, attention=args.attention, max_len=args.max_len):
        print(note)
    print(f"written to {args.out}")
    return 0
