"""Text that is always there: the sources of the Python standard library on this machine, as bytes, for LM and MLM."""

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cosformer.data.cache import prepare
from cosformer.data.dataset import SPLITS, Dataset, Description, Writer
from cosformer.data.vocabulary import Bytes

# tests and generated tables would crowd out code and prose; site-packages is not the library
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_LEFT_OUT |= {"lib2to3", "encodings", "config"}
_LARGEST = 200_000  # bytes of one file: larger ones are tables


def python(*, max_bytes: int = 4_000_000, seed: int = 0) -> Dataset:
    """Up to ``max_bytes`` of library sources; one row per line, ``</s>`` after each file; files are dealt 90/5/5.

    The text is that of the running Python: another version gives another set.
    """
    if max_bytes < 100_000:
        raise ValueError(
            f"max_bytes={max_bytes}; at least 100000, or the splits would be too small to train and score on"
        )
    root = Path(sysconfig.get_path("stdlib"))
    files: list[list[Any]] = [[name, size] for name, size in _sources(root) if 0 < size <= _LARGEST]
    if not files:
        raise FileNotFoundError(f"no Python sources under {root}; this Python comes without its library's sources")
    dealt = _dealt(files, max_bytes, seed)

    def build(writer: Writer) -> Description:
        vocabulary = Bytes(special=True)
        eos = np.array([vocabulary.eos_id], np.uint16)
        splits = {name: writer.split(name, np.uint16, labels=False) for name in SPLITS}
        for name, split in dealt.items():
            lines = (root / name).read_bytes().splitlines(keepends=True)
            rows = [*(Bytes.ids(line) for line in lines), eos]
            splits[split].add_many(np.concatenate(rows), [len(row) for row in rows])
        used = sum(size for name, size in files if name in dealt)
        return Description(vocabulary, notes={"bytes": used})

    return prepare("python", {"files": files, "max_bytes": max_bytes, "seed": seed}, build)


def _dealt(files: Sequence[Sequence[Any]], max_bytes: int, seed: int) -> dict[str, str]:
    """Name -> split of the files that fit into ``max_bytes``, in the order in which they are written."""
    found: dict[str, str] = {}
    used = 0
    for place, index in enumerate(np.random.default_rng(seed).permutation(len(files))):
        name, size = files[index]
        if used + size <= max_bytes:
            used += size
            found[name] = {8: "valid", 17: "test"}.get(place % 20, "train")
    for split in ("valid", "test"):
        if split not in found.values():  # few files, and its turn did not come: it takes the last one
            found[[name for name, where in found.items() if where == "train"][-1]] = split
    return found


def _sources(root: Path) -> list[tuple[str, int]]:
    """(name, bytes) of each source file of the library, sorted."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
        found += [Path(folder) / name for name in names if name.endswith(".py")]
    return sorted((path.relative_to(root).as_posix(), path.stat().st_size) for path in found)
