"""``cosformer bench attention --attentions``: time, peak memory above the inputs, and how both grow with the length.

Time: an untimed call, then calls for 20 ms or one call, all lengths taking turns, every second round backwards; growth
is the median over the rounds of the longest length's time over the second longest's. Memory: peak of resident memory
during the second call, in a fresh process that returns freed memory to the system.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cosformer import terminal
from cosformer.attention import ATTENTIONS, Attention, attention_class, build_attention
from cosformer.bench.attention import HEAD_DIM, HEADS, MATMUL, matmul
from cosformer.bench.measure import compared, in_fresh_process, interleaved, measured, peak_above_now
from cosformer.bench.tables import NO_SUCH_FORM, SPREAD, growth, lengths_of
from cosformer.ops.native import memory
from cosformer.report.measurements import Measurement, Results, cell, number
from cosformer.report.table import Table
from cosformer.runs import NOT_RUN

MODES = ("plain", "padded", "causal", "causal padded")
LENGTHS = (1024, 2048, 4096, 8192)
QUICK = {"lengths": (512, 1024), "repeats": 3}
PADDING = 0.25  # share of the keys that a padded input masks
_BUDGET = 6.0  # seconds after which no further round of a mode starts


def names(given: str) -> list[str]:
    """``all``, or a list with commas; an unknown name raises."""
    chosen = list(ATTENTIONS) if given == "all" else [name.strip() for name in given.split(",") if name.strip()]
    for name in chosen:
        attention_class(name)
    return chosen


def measurements(
    *, attentions: str, lengths: Sequence[int] = LENGTHS, repeats: int = 9, threads: int = 2
) -> Iterator[Measurement]:
    for name in names(attentions):
        traits = attention_class(name).traits
        there = [mode for mode in MODES if (traits.causal if "causal" in mode else traits.bidirectional)]
        terminal.status(f"{name}, memory")
        sizes = _peaks(name, there, lengths, threads)
        for mode in MODES:
            if mode not in there:
                yield from (_of(name, mode, kind, lengths[-1], note=NO_SUCH_FORM) for kind in ("time", "memory"))
                continue
            terminal.status(f"{name}, {mode}")
            yield from _time(name, mode, lengths, repeats)
            yield from _memory(name, mode, lengths, sizes)


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


def _time(name: str, mode: str, lengths: Sequence[int], repeats: int) -> Iterator[Measurement]:
    actions: dict[str, Any] = {"matmul": matmul()}
    try:
        with torch.no_grad():
            for n in lengths:
                attention, inputs = _build(name, mode, n), _inputs(mode, n)
                actions[str(n)] = lambda f=attention, x=inputs: f(*x)
            times = interleaved(actions, repeats=repeats, budget=_BUDGET, settle=True)
    except (ValueError, RuntimeError) as error:
        yield _of(name, mode, "time", lengths[-1], note=f"not run: {error}")
        return
    for n in lengths:
        m = compared(_of(name, mode, "time", n), times[str(n)], times["matmul"])
        yield replace(m, baseline_milliseconds=None)  # the unit says what it is
    if len(lengths) > 1:
        m = compared(_growth(name, mode, "time growth", lengths), *(times[str(n)] for n in (lengths[-1], lengths[-2])))
        yield replace(m, milliseconds=None, baseline_milliseconds=None)


def _peaks(name: str, modes: list[str], lengths: Sequence[int], threads: int) -> dict[str, list[int]] | str:
    """Bytes by mode and length, or why there are none."""
    arguments = {"name": name, "modes": modes, "lengths": list(lengths)}
    try:
        return in_fresh_process("cosformer.bench.zoo:peaks", threads, **arguments)
    except (RuntimeError, OSError) as error:
        return f"not run: {error}"


def _memory(name: str, mode: str, lengths: Sequence[int], found: dict[str, list[int]] | str) -> Iterator[Measurement]:
    if isinstance(found, str):
        yield _of(name, mode, "memory", lengths[-1], note=found)
        return
    for n, size in zip(lengths, found[mode], strict=True):
        yield replace(_of(name, mode, "memory", n), value=round(size / 1e6, 2))
    if len(lengths) > 1 and found[mode][-2] > 0:
        yield measured(_growth(name, mode, "memory growth", lengths), [found[mode][-1] / found[mode][-2]])


def _of(name: str, mode: str, kind: str, n: int, note: str = "") -> Measurement:
    unit = {"time": f"matmuls of {MATMUL}^3", "memory": "MB"}[kind]
    return Measurement(kind=kind, attention=name, mode=mode, length=n, unit=unit, better="lower", note=note)


def _growth(name: str, mode: str, kind: str, lengths: Sequence[int]) -> Measurement:
    place: dict[str, Any] = {"kind": kind, "attention": name, "mode": mode, "length": lengths[-1]}
    return Measurement(**place, baseline=f"{lengths[-2]:,} tokens", unit="times", better="lower")


def _build(name: str, mode: str, n: int) -> Attention:
    torch.manual_seed(0)
    causal = "causal" in mode
    return build_attention(name, num_heads=HEADS, head_dim=HEAD_DIM, max_len=n, causal=causal).eval()


def _inputs(mode: str, n: int) -> tuple[Tensor | None, ...]:
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM) for _ in range(3))
    mask = (torch.arange(n) < n - int(PADDING * n))[None] if "padded" in mode else None
    return q, k, v, mask


def tables(results: Results) -> list[Table]:
    """One table per mode: milliseconds and MB of each attention by length, and their growth."""
    cells = {(m.kind, m.attention, m.mode, m.length): m for m in results.measurements}
    lengths, names = lengths_of(results.measurements), list(dict.fromkeys(m.attention for m in results.measurements))
    factor = f"{lengths[-1] / lengths[-2]:g}x N" if len(lengths) > 1 else "growth"
    header = ["attention", *(f"ms at {n:,}" for n in lengths), f"time at {factor}"]
    header += [*(f"MB at {n:,}" for n in lengths), f"memory at {factor}"]

    def missing(m: Measurement | None) -> str:
        return NO_SUCH_FORM if m is not None and m.note == NO_SUCH_FORM else NOT_RUN

    def found(kind: str, name: str, mode: str) -> list[str]:
        of = [cells.get((kind, name, mode, n)) for n in lengths]
        values = [m and (m.milliseconds if kind == "time" else m.value) for m in of]
        if any(value is None for value in values):
            return [missing(of[-1])] * (len(lengths) + 1)
        numbers = [float(value or 0) for value in values]
        return [*map(number, numbers), growth(lengths, numbers)]

    made = []
    for mode in MODES:
        rows = [[name, *found("time", name, mode), *found("memory", name, mode)] for name in names]
        title = f"{mode.capitalize()} forward, float32, one sequence, 8 heads of 64 channels; memory above the inputs."
        made.append(Table(title, header, rows))
    kinds = [(mode, kind) for mode in MODES for kind in ("time", "memory")]
    rows = []
    for name in names:
        grown = [cells.get((f"{kind} growth", name, mode, lengths[-1])) for mode, kind in kinds]
        plain = [cells.get((kind, name, mode, lengths[-1])) for mode, kind in kinds]
        rows.append([name, *(cell(a) if a and a.value else missing(b) for a, b in zip(grown, plain, strict=True))])
    if len(lengths) > 1:
        title = (
            f"Growth from {lengths[-2]:,} to {lengths[-1]:,} tokens ({SPREAD}; linear is "
            f"{lengths[-1] / lengths[-2]:g})."
        )
        made.append(Table(title, ["attention", *(f"{mode}, {kind}" for mode, kind in kinds)], rows))
    return made
