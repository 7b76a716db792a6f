"""Every attention of the zoo: time, peak memory above the inputs, and how both grow with the length."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cosformer import terminal
from cosformer.attention import ATTENTIONS, Attention, attention_class, build_attention
from cosformer.lab.bench.measure import Spread, in_fresh_process, interleaved, peak_above_now, ratio, spread
from cosformer.lab.bench.results import Row, measured
from cosformer.ops.native import memory

HEADS, HEAD_DIM = 8, 64
PADDING = 0.25  # share of the keys that a padded input masks
MODES = ("plain", "padded", "causal", "causal padded")
KINDS = ("time", "time growth", "memory", "memory growth")
NO_SUCH_FORM = "-"
# Twice the length should take about twice the time and memory. The others are quadratic, sort, or are of order N^1.5.
LINEAR = (
    *("cosformer", "relu", "leaky_relu", "identity", "linear", "performer", "rfa_gaussian", "rfa_arccos"),
    *("rfa_gate_gaussian", "rfa_gate_arccos", "rotary_linear", "spe", "linformer", "longformer", "local", "bigbird"),
    *("nystrom", "inducing", "clustered"),
)
GOAL = 2.6  # from GOAL_LENGTHS[0] to GOAL_LENGTHS[1]
GOAL_LENGTHS = (4096, 8192)
PROTOCOL = (
    "time: an untimed call, then calls for 20 ms or one call, all lengths taking turns, every second round backwards; growth is "
    "the median over the rounds of the longest length's time over the second longest's. Memory: peak of resident memory during "
    "the second call, in a fresh process that returns freed memory to the system."
)
_MATMUL = 1024
_BUDGET = 6.0  # seconds after which no further round of a mode starts


def names(given: str) -> list[str]:
    """``all``, or a list with commas; an unknown name raises."""
    chosen = list(ATTENTIONS) if given == "all" else [name.strip() for name in given.split(",")]
    for name in chosen:
        attention_class(name)
    return chosen


def ids(name: str) -> set[str]:
    """The rows that :func:`rows` makes for an attention."""
    return {_row(name, mode, kind).id for mode in MODES for kind in KINDS}


def rows(chosen: Sequence[str], lengths: Sequence[int], *, repeats: int, threads: int) -> Iterator[Row]:
    """A row for the time, one for the memory and one for the growth of each, for each attention in each mode."""
    for name in chosen:
        traits = attention_class(name).traits
        there = [mode for mode in MODES if (traits.causal if "causal" in mode else traits.bidirectional)]
        terminal.status(f"{name}, memory")
        peaks_of = _peaks(name, there, lengths, threads)
        for mode in MODES:
            if mode not in there:
                yield from (_row(name, mode, kind, note=NO_SUCH_FORM) for kind in KINDS)
                continue
            terminal.status(f"{name}, {mode}")
            yield from _time(name, mode, lengths, repeats)
            yield from _memory(name, mode, lengths, peaks_of)


def growth(row: Row) -> tuple[float, float] | None:
    """Factor between the two longest lengths, and its exponent in the length."""
    points = sorted((int(n), value) for n, value in row.by_length.items())[-2:]
    if len(points) < 2 or points[0][1] <= 0 or points[1][1] <= 0:
        return None
    (n_0, x_0), (n_1, x_1) = points
    return x_1 / x_0, math.log(x_1 / x_0) / math.log(n_1 / n_0)


def peaks(name: str, modes: list[str], lengths: list[int]) -> dict[str, list[int]]:
    """Runs in a fresh process: bytes above the inputs and the built attention, by mode, at each length."""
    found = {}
    with torch.no_grad():
        for mode in modes:
            found[mode] = []
            for n in lengths:
                attention, inputs = _build(name, mode, n), _inputs(mode, n)
                attention(*inputs)  # code that loads at the first call is no memory of the method
                memory.release()  # but results kept for the next call are
                found[mode].append(peak_above_now(lambda a=attention, x=inputs: a(*x)))
    return found


def _time(name: str, mode: str, lengths: Sequence[int], repeats: int) -> Iterator[Row]:
    time_row, growth_row = _row(name, mode, "time"), _row(name, mode, "time growth", lengths)
    a, b, c = (torch.randn(_MATMUL, _MATMUL) for _ in range(3))
    actions: dict[str, Any] = {"matmul": lambda: torch.mm(a, b, out=c)}
    try:
        with torch.no_grad():
            for n in lengths:
                attention, inputs = _build(name, mode, n), _inputs(mode, n)
                actions[str(n)] = lambda f=attention, x=inputs: f(*x)
            times = interleaved(actions, repeats=repeats, budget=_BUDGET, settle=True)
    except (ValueError, RuntimeError) as error:
        yield from (replace(row, note=f"not run: {error}") for row in (time_row, growth_row))
        return
    by_length = {str(n): float(f"{1e3 * spread(times[str(n)]).median:.4g}") for n in lengths}
    yield measured(replace(time_row, by_length=by_length), ratio(times[str(lengths[-1])], times["matmul"]))
    if len(lengths) > 1:
        yield measured(growth_row, ratio(times[str(lengths[-1])], times[str(lengths[-2])]))


def _peaks(name: str, modes: list[str], lengths: Sequence[int], threads: int) -> dict[str, list[int]] | str:
    """Bytes by mode and length, or why there are none."""
    arguments = {"name": name, "modes": modes, "lengths": list(lengths)}
    try:
        return in_fresh_process("cosformer.lab.bench.zoo:peaks", threads, **arguments)
    except (RuntimeError, OSError) as error:
        return f"not run: {error}"


def _memory(name: str, mode: str, lengths: Sequence[int], found: dict[str, list[int]] | str) -> Iterator[Row]:
    memory_row, growth_row = _row(name, mode, "memory"), _row(name, mode, "memory growth", lengths)
    if isinstance(found, str):
        yield from (replace(row, note=found) for row in (memory_row, growth_row))
        return
    by_length = {str(n): round(size / 1e6, 2) for n, size in zip(lengths, found[mode], strict=True)}
    memory_row = replace(memory_row, by_length=by_length)
    yield measured(memory_row, spread([found[mode][-1] / 1e6]))
    if grown := growth(memory_row):
        yield measured(growth_row, Spread(grown[0], grown[0], grown[0]))


def _row(name: str, mode: str, kind: str, lengths: Sequence[int] = (), note: str = "") -> Row:
    what = f"{name}, {mode}, {kind}"
    if kind in ("time", "memory"):
        unit = {"time": f"matmuls of {_MATMUL}^3", "memory": "MB"}[kind]
        return Row(f"zoo/{name}/{mode}/{kind}", f"{what} at the longest length", unit, "lower", note=note)
    span = f" from {lengths[-2]:,} to {lengths[-1]:,}" if len(lengths) > 1 else ""
    goal = GOAL if name in LINEAR and tuple(lengths[-2:]) == GOAL_LENGTHS else None
    return Row(f"zoo/{name}/{mode}/{kind}", f"{what}{span}", "times", "lower", goal=goal, note=note)


def _build(name: str, mode: str, n: int) -> Attention:
    torch.manual_seed(0)
    causal = "causal" in mode
    return build_attention(name, num_heads=HEADS, head_dim=HEAD_DIM, max_len=n, causal=causal).eval()


def _inputs(mode: str, n: int) -> tuple[Tensor | None, ...]:
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM) for _ in range(3))
    mask = (torch.arange(n) < n - int(PADDING * n))[None] if "padded" in mode else None
    return q, k, v, mask
