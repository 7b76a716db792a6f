"""Text that is always there: the sources of the Python standard library on this machine, as bytes, for LM and MLM."""

import os
import sysconfig
from pathlib import Path

import numpy as np

from cosformer.data.cache import prepare
from cosformer.data.dataset import Dataset, Description, Writer
from cosformer.data.vocabulary import Bytes

# tests and generated tables would crowd out code and prose; site-packages is not the library
_LEFT_OUT = {
    "test",
    "tests",
    "idle_test",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "lib2to3",
    "encodings",
    "config",
}
_LARGEST = 200_000  # bytes of one file: larger ones are tables


def python(*, max_bytes: int = 4_000_000, seed: int = 0) -> Dataset:
    """Up to ``max_bytes`` of library sources; one row per line, ``</s>`` after each file; files are dealt 90/5/5.

    The text is that of the running Python: another version gives another set.
    """
    if max_bytes < 100_000:
        raise ValueError(f"max_bytes={max_bytes}; at least 100000, or a split would be empty")
    root = Path(sysconfig.get_path("stdlib"))
    files = [[name, size] for name, size in _sources(root) if 0 < size <= _LARGEST]
    if not files:
        raise FileNotFoundError(f"no Python sources under {root}; this Python comes without its library's sources")

    def build(writer: Writer) -> Description:
        vocabulary = Bytes(special=True)
        eos = np.array([vocabulary.eos_id], np.uint16)
        order = np.random.default_rng(seed).permutation(len(files))
        splits = {name: writer.split(name, np.uint16, labels=False) for name in ("train", "valid", "test")}
        used = 0
        for place, index in enumerate(order):
            name, size = files[index]
            if used + size > max_bytes:
                continue
            used += size
            split = splits[{8: "valid", 17: "test"}.get(place % 20, "train")]
            lines = (root / name).read_bytes().splitlines(keepends=True)
            rows = [*(Bytes.ids(line) for line in lines), eos]
            split.add_many(np.concatenate(rows), [len(row) for row in rows])
        return Description(vocabulary, notes={"bytes": used})

    return prepare("python", {"files": files, "max_bytes": max_bytes, "seed": seed}, build)


def _sources(root: Path) -> list[tuple[str, int]]:
    """(name, bytes) of each source file of the library, sorted."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _LEFT_OUT]
        found += [Path(folder) / name for name in names if name.endswith(".py")]
    return sorted((path.relative_to(root).as_posix(), path.stat().st_size) for path in found)
