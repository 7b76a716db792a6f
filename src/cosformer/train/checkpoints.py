"""Checkpoints that are whole or do not count: a manifest, written last, names every file, its size and its hash."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from cosformer import json_files
from cosformer.output_file import write_output

MANIFEST = "complete.json"
_FOR_PEOPLE = "README.md"  # the model card: whoever edits it does no damage
_NAME = re.compile(r"checkpoint-(\d+)")


def step_of(checkpoint: Path) -> int:
    """The update after which ``checkpoint`` was written; -1 for a folder that is none."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else -1


def seal(checkpoint: Path) -> None:
    """Write the manifest: from here on the checkpoint counts. Its files are on the disk before the manifest is."""
    files = {}
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.name not in (MANIFEST, _FOR_PEOPLE)):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[str(path.relative_to(checkpoint))] = {"size": path.stat().st_size, "sha256": digest}
    write_output(checkpoint / MANIFEST, json.dumps(files, indent=1))


def is_whole(checkpoint: Path) -> bool:
    """Whether every file that the manifest names is there in its full size: quick, for a look at many."""
    try:
        return all((checkpoint / name).stat().st_size == size for name, (size, _) in _manifest(checkpoint).items())
    except (OSError, ValueError):
        return False


def refuse_damaged(folder: Path) -> None:
    """Raise ValueError where the best weights in ``folder`` are not as they were written."""
    # runs of earlier versions have no manifest there, and models of others neither
    if (folder / MANIFEST).exists() and (problem := damage(folder)):
        raise ValueError(
            f"{problem}; use the run's last weights (--weights last, where there is that option), or train it again"
        )


def damage(checkpoint: Path) -> str:
    """Why the contents of a sealed folder are invalid, naming the file; empty if valid. Reads every file."""
    try:
        files = _manifest(checkpoint)
    except (OSError, ValueError):
        return f"{checkpoint / MANIFEST} is missing or damaged"
    for name, (size, digest) in files.items():
        try:
            with open(checkpoint / name, "rb") as file:
                same = os.fstat(file.fileno()).st_size == size
                same = same and (digest is None or hashlib.file_digest(file, "sha256").hexdigest() == digest)
        except OSError:
            return f"{checkpoint / name} is missing"
        if not same:
            return f"{checkpoint / name} is damaged"
    return ""


def _manifest(checkpoint: Path) -> dict[str, tuple[int, str | None]]:
    """File name -> size and hash; manifests of earlier versions have the size alone."""
    found = json_files.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(found, dict) or not found:
        raise ValueError("no manifest")
    try:
        return {
            name: (int(entry["size"]), str(entry["sha256"])) if isinstance(entry, dict) else (int(entry), None)
            for name, entry in found.items()
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"no manifest: {error}") from None


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that can be used, and why those after it cannot; None: there is none."""
    problems = []
    for checkpoint in reversed(_all(folder)):
        if not is_whole(checkpoint):
            problems.append(f"{checkpoint.name} was cut short and is left out")
        elif problem := damage(checkpoint):
            problems.append(f"{problem}: {checkpoint.name} is left out")
        else:
            return checkpoint, problems
    return None, problems


def whole(folder: Path) -> list[Path]:
    """The checkpoints that can be used, oldest first."""
    return [checkpoint for checkpoint in _all(folder) if is_whole(checkpoint)]


def broken(folder: Path) -> list[Path]:
    """Checkpoints that were cut short."""
    return [checkpoint for checkpoint in _all(folder) if not is_whole(checkpoint)]


def _all(folder: Path) -> list[Path]:
    """Whole or not, oldest first."""
    return sorted((p for p in folder.glob("checkpoint-*") if step_of(p) >= 0), key=step_of)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` whole checkpoints."""
    for checkpoint in whole(folder)[:-keep]:
        # without its manifest first: a removal cut short must not look whole
        (checkpoint / MANIFEST).unlink()
        shutil.rmtree(checkpoint)


def replace_folder(fresh: Path, place: Path) -> None:
    """Replace ``place`` by the folder ``fresh``. If interrupted, ``place`` is missing and ``fresh`` remains."""
    shutil.rmtree(place, ignore_errors=True)
    os.replace(fresh, place)
