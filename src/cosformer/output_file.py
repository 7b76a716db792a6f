"""Atomic output files. Links are followed; devices and pipes are written to, never replaced."""

import os
import platform
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cosformer import machine

STANDARD = "-"  # standard output, where a command says so


def write_output(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Atomically write ``content`` (text as UTF-8) to ``path``; on failure the previous contents stay."""
    with open_output(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def open_output(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A stream whose contents become the file ``path`` at the end, all of them or, after an error or a kill, none.

    A device or a pipe is written to directly, and so is standard output for the text ``-``.
    """
    if path == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    place = check_output(path)
    try:
        with _open(place) as file:
            yield file
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error  # a write that fails does not name its file


@contextmanager
def _open(place: Path) -> Iterator[IO[bytes]]:
    if place.exists() and not place.is_file():
        with open(place, "wb") as file:
            yield file
        return
    part = _part(place)
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if place.exists():
            part.chmod(stat.S_IMODE(place.stat().st_mode))
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)


def check_output(path: str | os.PathLike[str]) -> Path:
    """The file at ``path``, links followed; raises before any work is done if it cannot be written."""
    given = Path(path)
    if given.exists() and not (given.is_file() or given.is_dir()):
        return given  # not what it links to: /dev/stdout leads to a pipe that has no name
    try:
        place = given.resolve()  # a link stays one
    except (OSError, RuntimeError):
        raise ValueError(f"{path} is a link that leads back to itself") from None
    if place.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it")
    if not place.parent.is_dir():
        raise FileNotFoundError(f"the folder {place.parent} does not exist; make it first")
    return place


def _part(place: Path) -> Path:
    """Where this process writes what is to become ``place``; the parts of processes that were killed are removed."""
    start, end = f".{place.name}.{platform.node()}-", ".part"
    for old in place.parent.iterdir():
        pid = old.name.removeprefix(start).removesuffix(end)
        mark = {"pid": int(pid), "host": platform.node()} if old.name == f"{start}{pid}{end}" and pid.isdigit() else {}
        if machine.is_alive(mark) is False:
            old.unlink(missing_ok=True)
    return place.with_name(f"{start}{os.getpid()}{end}")
