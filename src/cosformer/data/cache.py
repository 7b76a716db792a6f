"""Where data lives, and prepared sets: made once in a folder of their own, renamed when whole, mapped from then on."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cosformer.data.dataset import INDEX_FILE, Dataset, Description, Writer, open_dataset
from cosformer.home import home

# goes up whenever the same options would give other arrays: older prepared sets are then made anew
FORMAT_VERSION = 1
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
    """The set made by ``build`` with these ``options`` (all that the result depends on): from the cache, or made now.

    It is written into a hidden folder and renamed at the end, under a lock: a failed or interrupted preparation leaves no
    set behind, and of several processes that ask at once one prepares while the others wait.
    """
    key = {"name": name, "format": FORMAT_VERSION, "options": options}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    target = prepared_folder() / f"{name}-{digest}"
    if not (target / INDEX_FILE).exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock"):
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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_being_prepared(folder: Path) -> bool:
    """Whether a living process holds the lock of this unfinished set."""
    with open(folder.parent / f".{folder.name.removeprefix(_UNFINISHED)}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def prepared_sets() -> list[Path]:
    """The folders of all prepared sets."""
    return sorted(index.parent for index in prepared_folder().glob(f"*/{INDEX_FILE}"))


def folder_size(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(size for _, size, _ in _walk(folder, "")) if folder.is_dir() else 0


def clean(name: str | None, *, downloads: bool) -> int:
    """Remove prepared sets (all, or those of ``name``) and unfinished ones, and with ``downloads`` all downloaded files;
    returns the bytes freed."""
    folder = prepared_folder()
    to_remove = [p for p in prepared_sets() if name is None or p.name.rpartition("-")[0] == name]
    to_remove += [p for p in folder.glob(f"{_UNFINISHED}{name or ''}*") if not _is_being_prepared(p)]
    freed = 0
    for path in to_remove:
        freed += folder_size(path)
        shutil.rmtree(path)
    # checksums stay: what is downloaded again must still be the same
    files = [p for p in downloads_folder().glob("*") if p.suffix != ".sha256"] if downloads else []
    for file in files:
        freed += file.stat().st_size
        file.unlink()
    return freed
