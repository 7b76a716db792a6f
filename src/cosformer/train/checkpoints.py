"""Checkpoints that are whole or do not count: a manifest, written last, names every file and its size."""

import json
import os
import re
import shutil
from pathlib import Path

MANIFEST = "complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def step_of(checkpoint: Path) -> int:
    """The update after which ``checkpoint`` was written; -1 for a folder that is none."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else -1


def seal(checkpoint: Path) -> None:
    """Write the manifest: from here on the checkpoint counts. Its files are on the disk before the manifest is."""
    sizes = {}
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.name != MANIFEST):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        sizes[str(path.relative_to(checkpoint))] = path.stat().st_size
    write_atomically(checkpoint / MANIFEST, json.dumps(sizes, indent=1))


def is_whole(checkpoint: Path) -> bool:
    """Whether every file that the manifest names is there in its full size."""
    try:
        sizes = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        return bool(sizes) and all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def whole(folder: Path) -> list[Path]:
    """The checkpoints that can be used, oldest first."""
    found = [p for p in folder.glob("checkpoint-*") if step_of(p) >= 0 and is_whole(p)]
    return sorted(found, key=step_of)


def broken(folder: Path) -> list[Path]:
    """Checkpoints that were cut short."""
    return sorted((p for p in folder.glob("checkpoint-*") if step_of(p) >= 0 and not is_whole(p)), key=step_of)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` whole checkpoints."""
    for checkpoint in whole(folder)[:-keep]:
        # without its manifest first: a removal cut short must not look whole
        (checkpoint / MANIFEST).unlink()
        shutil.rmtree(checkpoint)


def write_atomically(path: Path, text: str) -> None:
    """The whole new text or the old file, whatever happens in between."""
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def replace_folder(fresh: Path, place: Path) -> None:
    """Put the folder ``fresh`` where ``place`` is. Cut short in between, ``place`` is missing and ``fresh`` still there."""
    shutil.rmtree(place, ignore_errors=True)
    os.replace(fresh, place)
