"""Every attention of the zoo: time, peak memory above the inputs, and how both grow with the length."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cosformer import terminal
from cosformer.attention import ATTENTIONS, Attention, attention_class, build_attention
from cosformer.bench.measure import in_fresh_process, interleaved, peak_above_now, ratio, spread
from cosformer.bench.results import Row, measured

HEADS, HEAD_DIM = 8, 64
PADDING = 0.25  # share of the keys that a padded input masks
MODES = ("plain", "padded", "causal", "causal padded")
NO_CAUSAL_FORM = "-"
_MATMUL = 1024
_WARM = 256


def names(given: str) -> list[str]:
    """``all``, or a list with commas; an unknown name raises."""
    chosen = list(ATTENTIONS) if given == "all" else [name.strip() for name in given.split(",")]
    for name in chosen:
        attention_class(name)
    return chosen


def rows(chosen: Sequence[str], lengths: Sequence[int], *, repeats: int, threads: int) -> Iterator[Row]:
    """A row for the time and one for the memory of each attention in each mode."""
    for name in chosen:
        for mode in MODES:
            if "causal" in mode and not attention_class(name).traits.causal:
                for kind in ("time", "memory"):
                    yield _row(name, mode, kind, note=NO_CAUSAL_FORM)
                continue
            terminal.status(f"{name}, {mode}")
            yield _time(name, mode, lengths, repeats)
            yield _memory(name, mode, lengths, threads)


def growth(row: Row) -> tuple[float, float] | None:
    """Factor between the two longest lengths, and its exponent in the length."""
    points = sorted((int(n), value) for n, value in row.by_length.items())[-2:]
    if len(points) < 2 or points[0][1] <= 0 or points[1][1] <= 0:
        return None
    (n_0, x_0), (n_1, x_1) = points
    return x_1 / x_0, math.log(x_1 / x_0) / math.log(n_1 / n_0)


def peaks(name: str, mode: str, lengths: list[int]) -> list[int]:
    """Runs in a fresh process: bytes above the inputs and the built attention, at each length."""
    with torch.no_grad():
        warm, inputs = _build(name, mode, _WARM), _inputs(mode, _WARM)
        warm(*inputs)  # libraries that load at the first call are no memory of the method
        result = []
        for n in lengths:
            attention, inputs = _build(name, mode, n), _inputs(mode, n)
            result.append(peak_above_now(lambda a=attention, x=inputs: a(*x)))
    return result


def _time(name: str, mode: str, lengths: Sequence[int], repeats: int) -> Row:
    row = _row(name, mode, "time")
    a, b, c = (torch.randn(_MATMUL, _MATMUL) for _ in range(3))
    actions: dict[str, Any] = {"matmul": lambda: torch.mm(a, b, out=c)}
    try:
        with torch.no_grad():
            for n in lengths:
                attention, inputs = _build(name, mode, n), _inputs(mode, n)
                actions[str(n)] = lambda f=attention, x=inputs: f(*x)
            times = interleaved(actions, repeats=repeats)
    except (ValueError, RuntimeError) as error:
        return replace(row, note=f"not run: {error}")
    by_length = {str(n): float(f"{1e3 * spread(times[str(n)]).median:.4g}") for n in lengths}
    return measured(replace(row, by_length=by_length), ratio(times[str(lengths[-1])], times["matmul"]))


def _memory(name: str, mode: str, lengths: Sequence[int], threads: int) -> Row:
    row = _row(name, mode, "memory")
    try:
        arguments = {"name": name, "mode": mode, "lengths": list(lengths)}
        found = in_fresh_process("cosformer.bench.zoo:peaks", threads, **arguments)
    except (RuntimeError, OSError) as error:
        return replace(row, note=f"not run: {error}")
    by_length = {str(n): round(size / 1e6, 2) for n, size in zip(lengths, found, strict=True)}
    return measured(replace(row, by_length=by_length), spread([found[-1] / 1e6]))


def _row(name: str, mode: str, kind: str, note: str = "") -> Row:
    unit = {"time": f"matmuls of {_MATMUL}^3", "memory": "MB"}[kind]
    return Row(f"zoo/{name}/{mode}/{kind}", f"{name}, {mode}, {kind} at the longest length", unit, "lower", note=note)


def _build(name: str, mode: str, n: int) -> Attention:
    torch.manual_seed(0)
    causal = "causal" in mode
    return build_attention(name, num_heads=HEADS, head_dim=HEAD_DIM, max_len=n, causal=causal).eval()


def _inputs(mode: str, n: int) -> tuple[Tensor | None, ...]:
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM) for _ in range(3))
    mask = (torch.arange(n) < n - int(PADDING * n))[None] if "padded" in mode else None
    return q, k, v, mask
