"""``cosformer linearize``: a trained softmax model made linear, taught by itself on text of yours."""

import argparse
from dataclasses import fields
from pathlib import Path

from cosformer.commands.options import add_fields
from cosformer.extras import require
from cosformer.suggest import check_model_path


def configure(parser: argparse.ArgumentParser) -> None:
    from cosformer.linearize.settings import Settings

    add = parser.add_argument
    add("source", metavar="SOURCE", help="folder of a saved model, or a Hugging Face name")
    add("out", metavar="OUT", type=Path, help="folder to write; repeat the command to resume")
    add("--text", metavar="FILE", type=Path, nargs="+", required=True, help="text to train on (.xz is unpacked)")
    add("--maps", metavar="DIR", type=Path, help="linearized model whose maps to start from")
    add("--quiet", action="store_true", help="show no progress")
    add_fields(parser.add_argument_group("settings"), Settings())


def run(args: argparse.Namespace) -> int:
    check_model_path(args.source)
    require("hf", "transformers")
    require("hf", "peft")
    from cosformer.linearize.run import linearize
    from cosformer.linearize.settings import Settings

    given = vars(args)
    settings = Settings(**{field.name: given[field.name] for field in fields(Settings) if field.name in given})
    linearize(args.source, args.out, args.text, settings, maps=args.maps, quiet=args.quiet)
    print(f"written to {args.out}")
    return 0
