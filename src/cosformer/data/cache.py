"""Where data lives, and prepared sets: made once in a folder of their own, renamed when whole, mapped from then on."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cosformer.data.dataset import INDEX_FILE, Dataset, Description, Writer, open_dataset
from cosformer.home import home
from cosformer.locks import is_locked, locked

# goes up whenever the same options would give other arrays: older prepared sets are then made anew
FORMAT_VERSION = 2
_UNFINISHED = ".making-"


def prepared_folder() -> Path:
    return home() / "prepared"


def downloads_folder() -> Path:
    return home() / "downloads"


def fingerprint(path: Path) -> list[Any]:
    """What tells one state of a file or folder from another: names, sizes and times of change."""
    if path.is_file():
        stat = path.stat()
        return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    digest = hashlib.sha256()
    for name, size, changed in sorted(_walk(path, "")):
        digest.update(f"{name}\0{size}\0{changed}\n".encode(errors="surrogateescape"))
    return [str(path.resolve()), digest.hexdigest()]


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
            elif entry.is_file():
                stat = entry.stat()
                yield prefix + entry.name, stat.st_size, stat.st_mtime_ns


def prepare(name: str, options: dict[str, Any], build: Callable[[Writer], Description]) -> Dataset:
    """The data set that ``build`` makes with these ``options`` (everything the result depends on), from the cache if it
    is there.

    It is written to a hidden folder and renamed at the end, under a lock: a failed or interrupted preparation leaves
    nothing behind, and if several processes need the same data set, one prepares it while the others wait.
    """
    key = {"name": name, "format": FORMAT_VERSION, "options": options}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    target = prepared_folder() / f"{name}-{digest}"
    if not (target / INDEX_FILE).exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(_lock_of(target), f"the preparation of {name!r}", wait=True):
            if not (target / INDEX_FILE).exists():
                _make(name, key, target, build)
    return open_dataset(target)


def _make(name: str, key: dict[str, Any], target: Path, build: Callable[[Writer], Description]) -> None:
    making = target.parent / f"{_UNFINISHED}{target.name}"
    shutil.rmtree(making, ignore_errors=True)  # left by a process that was killed: the lock says that it is gone
    making.mkdir()
    try:
        with Writer(making) as writer:
            writer.finish(name, build(writer), key)
        making.rename(target)
    except BaseException as error:
        shutil.rmtree(making, ignore_errors=True)
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
            raise OSError(
                error.errno,
                f"preparing {name!r} failed: {error.strerror}; nothing was kept. Free some space, "
                "or set COSFORMER_HOME to a folder on another disk",
                str(error.filename or target),
            ) from error
        raise


def _lock_of(target: Path) -> Path:
    return target.parent / f".{target.name}.lock"


def prepared_sets() -> list[Path]:
    """The folders of all prepared sets."""
    return sorted(index.parent for index in prepared_folder().glob(f"*/{INDEX_FILE}"))


def folder_size(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(size for _, size, _ in _walk(folder, "")) if folder.is_dir() else 0


def clean(name: str | None, *, downloads: bool) -> int:
    """Remove prepared sets (all, or those of ``name``) and unfinished ones, and with ``downloads`` all downloaded
    files, whole or not, with their checksums; returns the bytes freed."""
    folder = prepared_folder()
    to_remove = [p for p in prepared_sets() if name is None or p.name.rpartition("-")[0] == name]
    to_remove += [
        p
        for p in folder.glob(f"{_UNFINISHED}{name or ''}*")
        if not is_locked(_lock_of(folder / p.name.removeprefix(_UNFINISHED)))
    ]
    freed = 0
    for path in to_remove:
        freed += folder_size(path)
        shutil.rmtree(path)
    # hidden files are locks: they stay, as somebody may be waiting for one
    for file in (p for p in downloads_folder().glob("[!.]*") if downloads):
        with download_lock(downloads_folder() / file.name.removesuffix(".part").removesuffix(".sha256")):
            freed += folder_size(file) if file.is_dir() else file.stat().st_size
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    return freed


def download_lock(target: Path, *, wait: bool = False) -> AbstractContextManager[None]:
    """One process at a time brings or removes the downloaded file ``target``."""
    return locked(_lock_of(target), f"the download of {target.name}", wait=wait)
