"""The subcommands, one file each, and what several of them read from the command line."""

import argparse
from pathlib import Path

from cosformer.experiment import EXPERIMENT_FILE
from cosformer.suggest import check_model_path


def model_folder(name: str) -> str:
    """The path or name for transformers: a run's best weights, or ``name`` itself (a folder or a hub name)."""
    check_model_path(name)
    if not (Path(name) / EXPERIMENT_FILE).is_file():
        return name
    best = Path(name) / "best"
    if not (best / "config.json").is_file():
        raise FileNotFoundError(f"the run {name} has no best weights yet; continue it with `cosformer resume {name}`")
    from cosformer.train import checkpoints

    checkpoints.refuse_damaged(best)
    return str(best)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1")
    return int(text)


def numbers(text: str) -> tuple[int, ...]:
    """``"512,2048"``, sorted."""
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas, like 1024,4096") from None
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers start at 1")
    return found
