"""``cosformer bench attention --device cuda``: the operator on a GPU against torch's own attention.

Times by the device's own events, peak memory by its allocator, bytes and operations a second beside what the device can
do, and the length from which on cosFormer is faster.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosformer import terminal
from cosformer.bench.attention import MODES, attentions, faster_from
from cosformer.bench.measure import compared, measured, seconds
from cosformer.bench.steps import peak
from cosformer.ops.backends import available_backends
from cosformer.ops.triton.plan import SIZES, padded, segment_length
from cosformer.report.measurements import Measurement

LENGTHS = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
QUICK = {"lengths": (1_024, 4_096, 16_384), "repeats": 3}
HEADS, CHANNELS = 16, (64, 128)
DTYPES = (torch.bfloat16, torch.float32)
LIMIT = 4_096  # side of the matrices that show what the device's products can do
COPY = 2**28  # bytes that show what its memory can do

Action = Callable[[], Any]


def measurements(
    *,
    lengths: Sequence[int] = LENGTHS,
    backend: str = "auto",
    device: str = "cuda",
    repeats: int = 9,
    threads: int = 2,
) -> Iterator[Measurement]:
    known = ["auto", *available_backends(torch.float32, device)]
    if backend not in known:
        raise ValueError(f"--backend {backend} does not run on {device}; there are: {', '.join(known)}")
    yield from limits(device, repeats)
    for dtype, d, mode in product(DTYPES, CHANNELS, MODES):
        against = []
        for n in lengths:
            make = partial(_inputs, n, d, dtype, device)
            found = list(_against_sdpa(make, mode, backend=backend, device=device, repeats=repeats))
            against += [m for m in found if m.kind == "forward" and m.baseline == "sdpa"]
            yield from found
        value, first = faster_from(against), against[0]
        place = {name: getattr(first, name) for name in ("attention", "mode", "width", "dtype", "backend")}
        note = "" if value else "at no length measured"
        m = Measurement(kind="faster from", baseline="sdpa", unit="tokens", better="lower", note=note, **place)
        yield replace(m, value=value and float(value))


def limits(device: str, repeats: int) -> Iterator[Measurement]:
    """What this device reaches in large products and in copies: the two sides of its roofline."""
    for dtype in DTYPES:
        a, b, c = (torch.ones(LIMIT, LIMIT, dtype=dtype, device=device) for _ in range(3))
        samples = [
            2 * LIMIT**3 / x / 1e12 for x in _seconds(lambda a=a, b=b, c=c: torch.mm(a, b, out=c), device, repeats)
        ]
        yield measured(Measurement(kind="matrix product", dtype=_name(dtype), unit="TFLOP/s", better="higher"), samples)
    x = torch.ones(COPY // 4, device=device)
    y = torch.empty_like(x)
    samples = [2 * COPY / one / 1e9 for one in _seconds(lambda: y.copy_(x), device, repeats)]
    yield measured(Measurement(kind="copy", unit="GB/s", better="higher"), samples)


def _against_sdpa(
    make: Callable[[bool], list[Tensor]], mode: str, *, backend: str, device: str, repeats: int
) -> Iterator[Measurement]:
    causal = MODES[mode]
    for kind, gradients in (("forward", False), ("training", True)):
        q, k, v, g = make(gradients)
        n, d = q.shape[2], q.shape[3]
        place: dict[str, Any] = {"attention": "cosformer", "backend": "" if backend == "auto" else backend}
        place |= {"mode": mode, "length": n, "width": d, "dtype": _name(q.dtype)}
        terminal.status(f"{kind}, {mode}, N={n:,}, {d} channels, {_name(q.dtype)}")
        both = attentions(n, causal, backend).values()
        actions = [partial(_run, attend, q, k, v, g if gradients else None) for attend in both]
        m = Measurement(kind=kind, baseline="sdpa", unit="times faster", better="higher", **place)
        mine, other = (_try(partial(_seconds, action, device, repeats)) for action in actions)
        if isinstance(mine, str):
            yield replace(m, note=mine)
            continue
        yield replace(compared(m, mine, None), note=other) if isinstance(other, str) else compared(m, mine, other)
        if not gradients and causal:
            done = work(n, d)
            for what, amount in (("TFLOP/s", done.operations / 1e12), ("GB/s", done.bytes / 1e9)):
                rate = Measurement(kind="rate", variant=what, unit=what, better="higher", **place)
                yield measured(rate, [amount / x for x in mine])
        if torch.device(device).type == "cuda":
            yield _memory(kind, place, actions, q, device)


def _memory(kind: str, place: dict[str, Any], actions: list[Action], q: Tensor, device: str) -> Measurement:
    peaks = [peak(action, 0, device) for action in actions]
    unit = "times the bytes of q, k, v and out"
    m = Measurement(kind=f"{kind} memory", baseline="sdpa", unit=unit, better="lower", **place)
    if isinstance(peaks[0], str):
        return replace(m, note=peaks[0])
    other = None if isinstance(peaks[1], str) else peaks[1] / 1e6
    return measured(replace(m, megabytes=peaks[0] / 1e6, baseline_megabytes=other), [peaks[0] / (4 * q.nbytes)])


def _inputs(n: int, d: int, dtype: torch.dtype, device: str, gradients: bool) -> list[Tensor]:
    made = [torch.randn(1, HEADS, n, d, dtype=dtype, device=device) for _ in range(4)]
    return [x.requires_grad_(gradients) for x in made[:3]] + made[3:]


def _run(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, g: Tensor | None) -> None:
    if g is None:
        with torch.no_grad():
            attend(q, k, v)
    else:
        torch.autograd.grad(attend(q, k, v), (q, k, v), g)


def _try(action: Callable[[], Any]) -> Any:
    """What it returns, or a note that it does not fit."""
    try:
        return action()
    except torch.OutOfMemoryError:
        return "out of memory"


def _seconds(action: Action, device: str, repeats: int) -> list[float]:
    """One sample a repeat, after two calls that compile and warm up."""
    for _ in range(2):
        action()
    if torch.device(device).type != "cuda":
        return [seconds(action) for _ in range(repeats)]
    samples = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        end.record()
        torch.cuda.synchronize(device)
        samples.append(start.elapsed_time(end) / 1e3)
    return samples


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Work(NamedTuple):
    operations: float
    bytes: float


def work(n: int, d: int) -> Work:
    """A causal forward pass in bfloat16 over one sequence with D = E: sums over segments, running sums, rows."""
    segment, rows = segment_length(padded(d)), SIZES["attend_rows"]["bf16", padded(d)].rows
    positions = HEADS * n
    state = positions / segment * 2 * d * d  # numbers in the sums of all segments
    # forming and reading the state, and half a segment of pairs for each row
    operations = positions * (4 * d * d + 4 * d * d + 4 * d * (segment + rows) / 2)
    # keys and values twice, queries and results once; sums written and read in float32, then in bfloat16
    return Work(operations, positions * 6 * d * 2 + state * (4 + 4 + 2 + 2))
