"""``cosformer export``: a model as ONNX files, which run without torch and without this package."""

import argparse
import shutil
from pathlib import Path

from cosformer.commands import model_folder, positive
from cosformer.extras import require
from cosformer.shipped import STDLIB_MODEL


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        default=str(STDLIB_MODEL),
        help="a run's folder, a saved model's folder, or a Hugging Face name (default: the small model of Python "
        "sources that comes with this package)",
    )
    add("out", metavar="OUT", type=Path, help="the folder to write to (new or empty)")
    add("--format", choices=["onnx"], default="onnx", help="onnx, the only one so far")
    add("--length", type=positive, help="tokens of a sequence, all of one length (default: any length)")
    parser.epilog = (
        "Writes model.onnx, which takes whole sequences. A left-to-right model whose layers keep states of one size "
        "gets step.onnx too, which takes one token at a time and the state, tensors past.*, and returns logits and the "
        "next state, present.*. Both are compared with torch when they are written."
    )


def run(args: argparse.Namespace) -> int:
    source = model_folder(args.model)
    require("hf", "transformers")
    from cosformer.hf.onnx import export, load

    if args.out.exists() and any(args.out.iterdir()):
        raise FileExistsError(f"{args.out} is not empty; choose another place for the exported model")
    model = load(source)
    args.out.mkdir(parents=True, exist_ok=True)
    for line in export(model, args.out, args.length):
        print(line)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, args.out / name)
    print(f"written to {args.out}")
    return 0
