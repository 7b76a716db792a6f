"""The C library's allocator, set for training.

By default glibc returns every freed block above some megabytes to the system, and an update that asks for the same blocks as the
last one pays a page fault for each 4 KB of them: some 200,000 for 16,384 tokens in a small language model, about a twentieth
of the update. A process of ours may keep them; a library must not decide that for the process of others, so only commands call this.
"""

import ctypes
import platform

# numbers of malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1
_OLD_MOST = 32 << 20  # bytes; an older glibc takes no larger threshold, blocks above it still go back to the system


def keep_freed_memory() -> bool:
    """Keep freed memory for the next allocations; whether this system's C library can be told to."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mapped = bool(mallopt(_MMAP_THRESHOLD, _NEVER)) or bool(mallopt(_MMAP_THRESHOLD, _OLD_MOST))
    trimmed = bool(mallopt(_TRIM_THRESHOLD, _NEVER))
    return mapped and trimmed


def give_back() -> None:
    """Return what is free now to the system, where memory is kept: another model will ask for other blocks."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def describe(kept: bool) -> str:
    """What ``keep_freed_memory``, which returned ``kept``, made of this system, to be named beside a measurement."""
    return "glibc, freed memory kept" if kept else "as the system has it"
