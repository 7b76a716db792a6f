"""``cosformer compare``: linearized models beside the one they were made of, on text of yours."""

import argparse
import json
from pathlib import Path
from typing import Any

from cosformer.commands import model_folder, output_path
from cosformer.extras import require
from cosformer.output_file import check_output


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help="runs, saved models or Hugging Face names, the original first")
    add("--text", metavar="FILE", type=Path, nargs="+", required=True, help="text to measure on (.xz is unpacked)")
    add("--tokens", type=int, default=32_768, help="language models: number of tokens to measure on (default: 32768)")
    add("--skip", type=int, default=0, help="language models: number of tokens to skip first (default: 0)")
    add("--contexts", type=int, nargs="+", help="language models: row lengths (default: 1024 8192)")
    add(
        "--continue-after",
        type=int,
        default=0,
        help="language models: show each one's continuation after this many tokens",
    )
    add(
        "--samples",
        type=int,
        default=10,
        help="prompts per depth of the pass-key and fact tests; 0: none (default: 10)",
    )
    add(
        "--generate-at", type=int, nargs="+", default=[1024, 4096], help="lengths of these prompts (default: 1024 4096)"
    )
    add("--lines", type=int, default=5000, help="encoders: number of lines to measure on (default: 5000)")
    add("--length", type=int, default=128, help="encoders: maximum number of tokens per line (default: 128)")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of matrix products (default: float32)")
    add("--json", metavar="FILE", type=output_path, help="append a line for each model")


def run(args: argparse.Namespace) -> int:
    models = [model_folder(model) for model in args.models]
    if args.json:
        check_output(args.json)
    require("hf", "transformers")
    from cosformer.linearize.compare import compare_models

    names = ("tokens", "skip", "contexts", "continue_after", "generate_at", "samples", "lines", "length", "dtype")
    for found in compare_models(models, args.text, **{name: getattr(args, name) for name in names}):
        print(_describe(found), flush=True)
        if args.json:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
    return 0


def _describe(found: dict[str, Any]) -> str:
    """One measured model in a few lines."""

    def listed(values: dict[Any, Any]) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in values.items())

    lines = [f"{found['model']}: {listed(found['scores'])}"]
    if "by position" in found:
        lines.append(f"  perplexity by position: {listed(found['by position'])}")
    if "student's loss minus this" in found:
        mean, low, high = found["student's loss minus this"]
        rows = len(found["row losses"])
        lines.append(f"  the student's loss minus this: {mean:+.4f} ({low:+.4f} to {high:+.4f}, {rows} rows)")
    if "retrieval" in found:
        lines.append(f"  right of {found['retrieval']['samples']}: {listed(found['retrieval']['right'])}")
    if "token ms" in found:
        lines.append(f"  ms for a token after: {listed(found['token ms'])}")
    if "text" in found:
        lines.append(f"  continuation: {found['text']['goes on']!r}")
    return "\n".join(lines)
