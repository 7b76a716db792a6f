"""Data sets of the Hugging Face hub as local files: ``hub:NAME``, or ``hub:NAME:CONFIG`` for one of several."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cosformer.data.cache import download_lock, downloads_folder
from cosformer.extras import require

PREFIX = "hub:"


def hub_folder(name: str, keep: Callable[[str], Any]) -> Path:
    """A folder with a parquet file for each split of ``name`` that ``keep`` accepts; fetched on first use."""
    folder = downloads_folder() / f"hub-{re.sub(r'[^A-Za-z0-9._-]+', '--', name)}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with download_lock(folder, wait=True):
            if not folder.is_dir():
                _fetch(name, folder, keep)
    return folder


def _fetch(name: str, folder: Path, keep: Callable[[str], Any]) -> None:
    path, _, config = name.partition(":")
    try:
        found = require("data", "datasets").load_dataset(path, config or None)
    except (OSError, ValueError) as error:  # ConnectionError, DatasetNotFoundError and others are among them
        raise FileNotFoundError(
            f"{PREFIX}{name} cannot be loaded from the hub ({str(error).splitlines()[0]}); without a network, copy its "
            "files and give their folder"
        ) from error
    splits = {split: rows for split, rows in found.items() if keep(split)}
    if not splits:
        raise ValueError(f"{PREFIX}{name} has the splits {', '.join(found)}, and none for training, validation or test")
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for split, rows in splits.items():
        rows.to_parquet(unfinished / f"{split}.parquet")
    unfinished.rename(folder)
