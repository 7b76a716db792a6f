"""The subcommands, one file each, and what several of them read from the command line."""

import argparse
from pathlib import Path

from cosformer.experiment import EXPERIMENT_FILE, LOCK_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE
from cosformer.records_file import RECORDS_FILE
from cosformer.suggest import check_model_path

# of a run's folder
OWN = (EXPERIMENT_FILE, LOCK_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE, RECORDS_FILE, "best", "checkpoints")


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


def output(text: str) -> str:
    """A file to write: any but a run's own records and weights, which nothing could bring back."""
    try:
        path = Path(text).resolve()
    except (OSError, RuntimeError, ValueError):  # said when it is written
        return text
    run = next((folder for folder in path.parents if (folder / EXPERIMENT_FILE).is_file()), None)
    if run is not None and path.relative_to(run).parts[0] in OWN:
        raise argparse.ArgumentTypeError(f"{text} belongs to the run {run}, which writes it; name another file")
    return text


def output_path(text: str) -> Path:
    return Path(output(text))


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
