"""``cosformer linearize``: a trained softmax model made linear, taught by itself on text of yours."""

import argparse
from dataclasses import fields
from pathlib import Path

from cosformer.extras import require
from cosformer.suggest import check_model_path

# option -> what it says; defaults and types are those of Settings
HELP = {
    "attention": "what stands behind the learned maps: cosformer, relu, linear or performer",
    "keep": "layers that stay softmax: how many (those with the largest loss), or their numbers as in 0,4",
    "features": "channels of a head behind its map (default: twice those before)",
    "window": "keys before each query that stay softmax in every linear layer; the far past is linear",
    "max_len": "the longest sequence, the paper's M (default: the model's own)",
    "length": "tokens in a row of training text",
    "batch": "rows in an update",
    "transfer_tokens": "tokens to teach the maps with",
    "transfer_steps": "steps on each batch of the transfer",
    "transfer_rate": "learning rate of the maps",
    "repair_tokens": "tokens to train LoRA with afterwards",
    "repair_rate": "learning rate of the repair",
    "rank": "of LoRA",
    "against": "what the repair aims at: teacher (its logits, or hidden states where it has none) or text",
    "held_out": "rows of the text kept back to measure on",
    "dtype": "of the matrix products: float32 or bfloat16",
    "seed": "of the order of the rows and of LoRA",
}
_NUMBERS = {"features": int, "max_len": int}  # default None


def configure(parser: argparse.ArgumentParser) -> None:
    from cosformer.linearize.settings import Settings

    add = parser.add_argument
    add("source", metavar="SOURCE", help="a directory with a saved model, or a name on the Hugging Face hub")
    add("out", metavar="OUT", type=Path, help="where to write the linear model; killed, repeat the command")
    add("--text", metavar="FILE", type=Path, nargs="+", required=True, help="text to learn from (.xz is unpacked)")
    add("--maps", metavar="DIR", type=Path, help="a linearized model of the same source whose maps to start from")
    for field in fields(Settings):
        kind = _NUMBERS.get(field.name) or type(field.default)
        shown = "" if field.default is None else f" (default: {field.default})"
        add(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, help=HELP[field.name] + shown)
    add("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    check_model_path(args.source)
    require("hf", "transformers")
    require("hf", "peft")
    from cosformer.linearize.run import linearize
    from cosformer.linearize.settings import Settings

    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    linearize(args.source, args.out, args.text, settings, maps=args.maps, quiet=args.quiet)
    print(f"written to {args.out}")
    return 0
