"""Time and memory of Python functions: interleaved repeats, and peaks in a fresh process."""

import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cosformer.report.measurements import DIFFERENCE, Measurement

# calls shorter than this are repeated within a sample: the clock and the scheduler cost microseconds
SAMPLE_SECONDS = 0.02
FEWEST_REPEATS = 3


class Spread(NamedTuple):
    """The median of some samples and the quartiles around it."""

    median: float
    low: float
    high: float


def spread(samples: Sequence[float]) -> Spread:
    if len(samples) < 2:
        return Spread(samples[0], samples[0], samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(median, low, high)


def interleaved(
    actions: Mapping[str, Callable[[], Any]],
    *,
    repeats: int,
    budget: float = 20.0,
    warm: bool = False,
    settle: bool = False,
) -> dict[str, list[float]]:
    """Seconds per call of each action, one sample per repeat, the actions taking turns.

    Whatever disturbs the machine for a while then disturbs all of them, and ratios of samples with the same index
    stand. ``budget``: seconds after which no further repeat starts, once there are three. ``warm``: the actions have
    run before and are long, so a sample is one call. ``settle``: an untimed call comes before each sample, so that what
    the neighbour left in caches and in the allocator does not count.
    """
    calls = {name: 1 if warm else _calls_per_sample(action) for name, action in actions.items()}
    samples: dict[str, list[float]] = {name: [] for name in actions}
    start = time.perf_counter()
    for repeat in range(repeats):
        if repeat >= FEWEST_REPEATS and time.perf_counter() - start > budget:
            break
        # every second round runs backwards, so that none always follows the same neighbour
        for name in list(actions)[:: 1 if repeat % 2 == 0 else -1]:
            if settle:
                actions[name]()
            samples[name].append(seconds(actions[name], calls[name]))
    return samples


def measured(m: Measurement, samples: Sequence[float]) -> Measurement:
    """``m`` with the median and quartiles of ``samples``, rounded; of one sample, its value."""
    value, low, high = (float(f"{x:.4g}") for x in spread(samples))
    return replace(m, value=value, low=low, high=high) if len(samples) > 1 else replace(m, value=value)


def compared(m: Measurement, ours: Sequence[float], theirs: Sequence[float] | None) -> Measurement:
    """``m`` with the seconds of its attention against those of its baseline; None: the baseline did not run.

    Where higher is better the value is how many times faster ours is, otherwise how many times as long it takes; with
    the unit DIFFERENCE, the microseconds it takes more.
    """
    m = replace(m, milliseconds=_milliseconds(ours))
    if theirs is None:
        return m
    m = replace(m, baseline_milliseconds=_milliseconds(theirs))
    pairs = list(zip(ours, theirs, strict=True))
    if m.unit == DIFFERENCE:
        return measured(m, [1e6 * (a - b) for a, b in pairs])
    return measured(m, [b / a if m.better == "higher" else a / b for a, b in pairs])


def _milliseconds(samples: Sequence[float]) -> float:
    return float(f"{1e3 * spread(samples).median:.4g}")


def seconds(action: Callable[[], Any], calls: int = 1) -> float:
    """Of one call, by the clock."""
    start = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - start) / calls


def _calls_per_sample(action: Callable[[], Any]) -> int:
    action()  # the first call makes caches and threads
    once = seconds(action)
    if once < SAMPLE_SECONDS / 10:
        once = seconds(action, 10)
    return max(1, math.ceil(SAMPLE_SECONDS / max(once, 1e-9)))


def in_fresh_process(function: str, threads: int, **arguments: Any) -> Any:
    """Call ``"package.module:function"`` in a new interpreter; what it returns must fit into JSON.

    Large blocks of memory come from the system and go back to it there, so that one measurement leaves nothing behind
    that would hide a part of the next.
    """
    command = [
        sys.executable,
        "-m",
        "cosformer.bench.measure",
        function,
        json.dumps(arguments | {"threads": threads}),
    ]
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RuntimeError(f"{function} failed in a fresh process: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_above_now(action: Callable[[], Any]) -> int:
    """Bytes by which resident memory peaks above its present level while ``action`` runs (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = resident("VmRSS")
    action()
    return resident("VmHWM") - before


@contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Inside, allocations that would take this process ``size`` bytes above what it holds now fail (Linux)."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = resident("VmData") + size
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def resident(field: str) -> int:
    """Bytes of this process, by a field of its status (VmRSS, VmData …)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; memory is measured on Linux only")


def _main(function: str, arguments: str) -> None:
    module, _, name = function.partition(":")
    options = json.loads(arguments)
    import torch

    torch.set_num_threads(options.pop("threads"))
    print(json.dumps(getattr(importlib.import_module(module), name)(**options)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
