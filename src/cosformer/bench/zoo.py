"""``cosformer bench attention --attentions``: time, peak memory above the inputs, and how both grow with the length.

Time: an untimed call, then calls for 20 ms or one call, all lengths taking turns, every second round backwards; growth is the
median over the rounds of the longest length's time over the second longest's. Memory: peak of resident memory during the
second call, in a fresh process that returns freed memory to the system.
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
from cosformer.ops.native import memory
from cosformer.report.bench_tables import NO_SUCH_FORM
from cosformer.report.bench_tables import ZOO_MODES as MODES
from cosformer.report.records import Measurement

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
