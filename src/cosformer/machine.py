"""What a measurement ran on: recorded with every result, because a number without its machine says nothing."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cosformer import processor


def describe(threads: int) -> dict[str, Any]:
    """CPU, cores, threads in use, memory and versions."""
    import torch

    return {
        "cpu": processor.name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gb": round(memory("MemTotal") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),  # above the number of threads: somebody else was using the machine
    }


def provenance(command: list[str], program: str = "cosformer") -> dict[str, Any]:
    """The command line, the date, and inside a git checkout of this project the commit."""
    return {
        "command": " ".join([program, *command]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
    }


_FOLDERS = re.compile(r"(?:~|[A-Za-z]:)?[/\\](?:.*[/\\])?")


def without_folders(words: Sequence[str]) -> str:
    """A command's ``words`` as one line, of absolute paths their last part alone: for what is handed on to others."""

    def name(path: str) -> str:
        found = _FOLDERS.match(path)
        return path[found.end() :] if found and found.end() < len(path) else path

    def shown(word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        return option + equals + ",".join(map(name, value.split(",")))

    return shlex.join(shown(word.rstrip("/") or word) for word in words)


def peak_memory_mb() -> float | None:
    """The most memory that this process has had at once, in MB; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, elsewhere kilobytes
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)


def process() -> dict[str, Any]:
    """This process, so that :func:`is_alive` can tell later whether it is still there."""
    return {"pid": os.getpid(), "host": platform.node(), "process_started": _start(os.getpid())}


def is_alive(mark: dict[str, Any]) -> bool | None:
    """Whether the process that ``mark`` (from :func:`process`) names still runs; None: of another machine, or not said.

    A number that the system gave to a later process is told by when that one started.
    """
    pid = mark.get("pid")
    if type(pid) is not int or mark.get("host") != platform.node():
        return None
    if not 0 < pid < 1 << 31:  # no process can have it; 0 and less are groups
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    return mark.get("process_started") in (None, _start(pid))


def memory(field: str) -> int:
    """Bytes of ``MemTotal`` or ``MemAvailable``; 0 where the system does not say."""
    kilobytes = processor.read_field(Path("/proc/meminfo"), field)
    return int(kilobytes.removesuffix(" kB")) * 1024 if kilobytes else 0


def _start(pid: int) -> int | None:
    """When the process began, in ticks since the machine did; None where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])  # the name before it may hold spaces


def _commit() -> str | None:
    """The commit of the sources that run, with a ``+`` when they were changed since; None outside a checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        return done.stdout.strip()

    # an installed copy may lie inside the checkout of another project
    if not git("ls-files", Path(__file__).name):
        return None
    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
