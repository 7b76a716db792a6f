"""One process at a time: a lock file that the system releases when its process ends, however it ends."""

import errno
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from cosformer import machine

_NOT_SUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_held: set[IO[str]] = set()
# a forked child (a loader of rows) has our files open too, and would keep the locks after our death until its own
os.register_at_fork(after_in_child=lambda: [file.close() for file in _held])


class InUse(ValueError):
    """Another process holds the lock; the message names it."""


@contextmanager
def locked(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``; while another process does, raise :class:`InUse` (``what`` is in use), or ``wait``
    for it.

    Where the file system has no locks (some network ones), the process that the file names is all that can be asked,
    and a process of another machine goes unnoticed: that is said on stderr.
    """
    with open(path, "a+", encoding="utf-8") as file:
        if not _lock(file, wait=False):
            holder = _holder(file)
            if not wait:
                raise InUse(f"{what} is in use by {_name(holder)}; wait for it to end, or stop it")
            print(f"{what} is in use by {_name(holder)}: waiting", file=sys.stderr)
            while not _lock(file, wait=True):  # no locks here: the process that holds it can only be watched
                time.sleep(1)
        _write(file, json.dumps(machine.process()))
        _held.add(file)
        try:
            yield
        finally:
            _held.remove(file)
            _write(file, "")


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock file ``path``."""
    if not path.exists():
        return False
    with open(path, "a+", encoding="utf-8") as file:
        return not _lock(file, wait=False)


def _lock(file: IO[str], *, wait: bool) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        if machine.is_alive(_holder(file)):
            return False
        print(
            f"{file.name}: no locks on this file system ({error.strerror}); make sure no other machine works here",
            file=sys.stderr,
        )
    return True


def _holder(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        found = json.loads(file.read())
    except ValueError:  # it has not written it yet
        return {}
    return found if isinstance(found, dict) else {}


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']}" if {"pid", "host"} <= holder.keys() else "another process"


def _write(file: IO[str], text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()
