"""``python -m benchmarks native``: how near the compiled kernels come to what the machine can do.

The limit is the time of 8 B H N D E operations at the rate of a 1024 x 1024 x 1024 matrix product, measured in turn
with the kernel.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from cosformer import terminal
from cosformer.bench.attention import MODES, matmul, share
from cosformer.bench.measure import compared, interleaved, measured
from cosformer.bench.tables import SPREAD, crossed, rest
from cosformer.ops import native
from cosformer.ops.operator import cosformer_attention
from cosformer.report.measurements import Measurement, Results
from cosformer.report.table import Table

QUICK = {"lengths": (4096,), "repeats": 5}
SHAPE_LENGTH = 4096


class Shape(NamedTuple):
    name: str
    heads: int = 8
    d: int = 64
    e: int = 64


PLAIN = Shape("8 heads of 64 channels")
SHAPES = (
    Shape("8 heads of 32 channels", d=32, e=32),
    Shape("8 heads of 128 channels", d=128, e=128),
    Shape("8 heads of 256 channels", d=256, e=256),
    Shape("8 heads, 64 channels, 128 of values", e=128),
    Shape("8 heads, 128 channels, 48 of values", d=128, e=48),
    Shape("one head of 64 channels", heads=1),
)


def measurements(
    *, lengths: Sequence[int] = (4096, 16384), repeats: int = 15, threads: int = 2
) -> Iterator[Measurement]:
    if not native.available():
        raise ValueError(f"nothing to measure: {native.describe()}")
    for shape, n in [*((PLAIN, n) for n in lengths), *((shape, SHAPE_LENGTH) for shape in SHAPES)]:
        for mode in MODES:
            yield from against_limit(shape, mode, n, repeats)
    for mode in MODES:
        yield from half_precision(mode, SHAPE_LENGTH, repeats)
    yield one_step(repeats)


def against_limit(shape: Shape, mode: str, n: int, repeats: int) -> Iterator[Measurement]:
    """Forward and backward in multiples of the time that matrix products of as many operations take."""
    terminal.status(f"{shape.name}, {mode}, N={n:,}, against the limit")
    times = interleaved({"limit": matmul(), **_actions(shape, MODES[mode], n)}, repeats=repeats, settle=True)
    limit = [share(n, *shape[1:]) * x for x in times["limit"]]
    for kind in ("forward", "backward"):
        m = _kernel(kind, mode, n, "limit", "times the limit")
        yield compared(replace(m, variant=shape.name), times[kind], limit)


def half_precision(mode: str, n: int, repeats: int) -> Iterator[Measurement]:
    """bfloat16 in multiples of float32."""
    terminal.status(f"bfloat16, {mode}")
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    of_dtype = {name: _actions(PLAIN, MODES[mode], n, dtype) for name, dtype in dtypes.items()}
    actions = {f"{kind} {name}": action for name, found in of_dtype.items() for kind, action in found.items()}
    # two times that are nearly equal take more samples to tell apart
    times = interleaved(actions, repeats=4 * repeats, budget=40.0, settle=True)
    for kind in ("forward", "backward"):
        m = replace(_kernel(kind, mode, n, "float32", "times the time"), dtype="bfloat16")
        yield compared(m, times[f"{kind} bfloat16"], times[f"{kind} float32"])


def one_step(repeats: int) -> Measurement:
    """The time of one token, Python included."""
    terminal.status("one-token steps")
    q, k, v = _tensors(PLAIN, 1)
    settings: dict[str, Any] = {"causal": True, "max_len": 2**40, "return_state": True}
    state = cosformer_attention(q, k, v, **settings)[1]

    def step() -> None:
        nonlocal state
        _, state = cosformer_attention(q, k, v, state=state, **settings)

    times = interleaved({"step": step}, repeats=max(6 * repeats, 9), settle=True)
    m = Measurement(kind="step", attention="cosformer", batch=1, unit="µs", better="lower")
    return measured(m, [1e6 * x for x in times["step"]])


def _kernel(kind: str, mode: str, n: int, baseline: str, unit: str) -> Measurement:
    place: dict[str, Any] = {"kind": kind, "attention": "cosformer", "mode": mode, "length": n, "baseline": baseline}
    return Measurement(**place, unit=unit, better="lower")


def _tensors(shape: Shape, n: int, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(1, shape.heads, n, channels, dtype=dtype) for channels in (shape.d, shape.d, shape.e))


def _actions(shape: Shape, causal: bool, n: int, dtype: torch.dtype | None = None) -> dict[str, Callable[[], Any]]:
    """Forward, and backward alone, as a user calls them."""
    q, k, v = _tensors(shape, n, dtype)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out, gradient = cosformer_attention(*leaves, causal=causal, max_len=n), torch.randn_like(v)
    return {
        "forward": lambda: cosformer_attention(q, k, v, causal=causal, max_len=n),
        "backward": lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True),
    }


def tables(results: Results) -> list[Table]:
    shown = results.find(baseline="limit")
    title = (
        "Time of the compiled kernels, in multiples of the time that matrix products of as many operations take "
        f"({SPREAD})."
    )
    table = crossed(title, shown, lambda m: f"{m.mode}, N={m.length:,}, {m.variant}", lambda m: m.kind)
    return [table, rest(results, shown)]
