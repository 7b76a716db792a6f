"""``cosformer compare``: a linearized or converted model beside its original, on text of yours."""

import argparse
import json
from pathlib import Path

from cosformer.extras import require
from cosformer.suggest import check_model_path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", metavar="MODEL", nargs="+", help="the original first, then models made of it")
    parser.add_argument(
        "--text", metavar="FILE", type=Path, nargs="+", required=True, help="text to measure on (.xz is unpacked)"
    )
    parser.add_argument("--tokens", type=int, default=32_768, help="of language models: tokens of it (default: 32768)")
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=[1024], help="of language models: row lengths (default: 1024)"
    )
    parser.add_argument("--lines", type=int, default=5000, help="of encoders: lines of it (default: 5000)")
    parser.add_argument("--length", type=int, default=128, help="of encoders: longest line in tokens (default: 128)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="to compute in (default: float32)"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="append a line for each model")


def run(args: argparse.Namespace) -> int:
    for model in args.models:
        check_model_path(model)
    require("hf", "transformers")
    from cosformer.linearize.compare import compare_models

    for found in compare_models(
        args.models,
        args.text,
        tokens=args.tokens,
        contexts=args.contexts,
        lines=args.lines,
        length=args.length,
        dtype=args.dtype,
    ):
        scores = ", ".join(f"{name} {value:.4g}" for name, value in found["scores"].items())
        print(f"{found['model']}: {scores}", flush=True)
        if args.json:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
    return 0
