"""``cosformer convert``: a pretrained model with its attention replaced and its weights kept."""

import argparse
from pathlib import Path

from cosformer.commands import model_folder
from cosformer.extras import require


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a run's folder, a saved model's folder, or a Hugging Face name")
    add("out", metavar="OUT", type=Path, help="where to write the converted model (new or empty)")
    add(
        "--attention",
        default="cosformer",
        help="cosformer (default), multiscale or softmax; for a cosformer model any attention of the zoo",
    )
    add(
        "--max-len",
        type=int,
        help="the paper's M, the longest sequence; multiscale's slowest rate is 1/M (default: the model's own longest)",
    )


def run(args: argparse.Namespace) -> int:
    source = model_folder(args.source)
    require("hf", "transformers")
    from cosformer.hf import convert

    for note in convert(source, args.out, attention=args.attention, max_len=args.max_len):
        print(note)
    print(f"written to {args.out}")
    return 0
