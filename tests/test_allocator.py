"""Freed memory that stays in the process costs no page faults when it is asked for again."""

import ctypes
import platform
import subprocess
import sys

import pytest

from cosformer import allocator

PAGES = 16 << 20 >> 10  # of a tensor of 64 MB; 20 of them are made, one after the other
WORK = """
import resource, torch
from cosformer.allocator import keep_freed_memory
if {keep}:
    assert keep_freed_memory()
for _ in range(20):  # until the heap has found its size
    torch.ones(16 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(16 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool) -> int:
    done = subprocess.run([sys.executable, "-c", WORK.format(keep=keep)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library is not glibc: its allocator stays as it is"
)
def test_memory_that_is_kept_costs_no_page_faults():
    assert faults(keep=True) < 2 * PAGES < 10 * PAGES < faults(keep=False)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc: nothing is kept")
def test_kept_memory_can_be_given_back():
    code = """
import torch
from pathlib import Path
from cosformer.allocator import give_back, keep_freed_memory
def held():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
keep_freed_memory()
before = held()
torch.ones(64 << 20)
kept = held()
give_back()
print(kept - before > 200_000, held() - before < 50_000)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert allocator.keep_freed_memory() is False
    assert "kept" not in allocator.describe(False) and "kept" in allocator.describe(True)


@pytest.mark.parametrize("most", [32 << 20, 0])
def test_an_older_glibc_takes_what_it_can(monkeypatch: pytest.MonkeyPatch, most: int):
    """A C library that refuses every threshold for mapped blocks above ``most``."""
    taken: dict[int, int] = {}

    class Old:
        @staticmethod
        def mallopt(name: int, value: int) -> int:
            if name == -3 and value > most:
                return 0
            taken[name] = value
            return 1

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.17"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Old)
    assert allocator.keep_freed_memory() is (most > 0)
    assert taken == ({-3: most} if most else {}) | {-1: 2**31 - 1}
