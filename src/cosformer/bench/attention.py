"""``cosformer bench attention``: the operator against torch's softmax attention, the authors' implementation and the
machine's limit."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer import machine, terminal
from cosformer.bench.measure import compared, in_fresh_process, interleaved, measured, peak_above_now
from cosformer.bench.released import released_attention, released_bytes
from cosformer.bench.tables import SPREAD, crossed, length, rest
from cosformer.ops.backends import available_backends
from cosformer.ops.operator import cosformer_attention
from cosformer.report.measurements import DIFFERENCE, Measurement, Results
from cosformer.report.table import Table

LENGTHS = (1, 8, 32, 63, 64, 128, 256, 1024, 4096, 16384)
QUICK = {"lengths": (8, 64, 256, 1024, 4096), "repeats": 3}
HEADS, HEAD_DIM = 8, 64
SHORT = 64  # below it a call takes microseconds, and a difference says more than a ratio
LINEAR_FROM = 1024  # from here on the authors' implementation and the matmul limit are measured too
BACKWARD_UP_TO = 4096
PEAK_LENGTH = 65_536
MILLION = 1_048_576
LATE_TOKEN = 1_000_000
MATMUL = 1024
MODES = {"causal": True, "non-causal": False}


def measurements(
    *, lengths: Sequence[int] = LENGTHS, backend: str = "auto", repeats: int = 9, threads: int = 2
) -> Iterator[Measurement]:
    backends = ["auto", *available_backends()]
    if backend not in backends:
        raise ValueError(f"--backend {backend} does not run here; there are: {', '.join(backends)}")
    for n in lengths:
        for mode in MODES:
            yield from forward(n, mode, backend=backend, repeats=repeats)
    for n in [n for n in lengths if LINEAR_FROM <= n <= BACKWARD_UP_TO][-1:]:
        for mode in MODES:
            yield training(n, mode, backend=backend, repeats=repeats)
    yield training_memory(backend=backend, threads=threads)
    yield time_per_token(backend=backend, repeats=repeats)
    yield late_step(backend=backend, repeats=repeats)


def forward(n: int, mode: str, *, backend: str, repeats: int, baselines: bool = True) -> Iterator[Measurement]:
    """One forward pass without gradients. ``baselines``: besides SDPA also the others, for long input."""
    terminal.status(f"forward, {mode}, N={n:,}")
    causal = MODES[mode]
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM) for _ in range(3))
    actions: dict[str, Callable[[], Any]] = {
        name: partial(attend, q, k, v) for name, attend in attentions(n, causal, backend).items()
    }
    baselines = baselines and n >= LINEAR_FROM
    too_big = _too_big(n, causal) if baselines else ""
    if baselines:
        actions["matmul"] = matmul()
        if not too_big:
            actions["authors"] = _authors(q, k, v, causal)
    with torch.no_grad():
        times = interleaved(actions, repeats=repeats)
    ours = times["cosformer"]
    m = _operator("forward", mode, n, backend, "sdpa")
    if n < SHORT:
        m = replace(m, unit=DIFFERENCE, better="lower")
    yield compared(m, ours, times["sdpa"])
    if not baselines:
        return
    m = _operator("forward", mode, n, backend, "authors")
    yield replace(m, note=too_big) if too_big else compared(m, ours, times["authors"])
    m = replace(_operator("forward", mode, n, backend, "limit"), unit="times the limit", better="lower")
    yield compared(m, ours, [share(n, HEADS, HEAD_DIM, HEAD_DIM) * x for x in times["matmul"]])


def attentions(n: int, causal: bool, backend: str) -> dict[str, Callable[..., Tensor]]:
    """The operator and torch's softmax attention, both to be called with q, k and v."""
    return {
        "cosformer": partial(cosformer_attention, causal=causal, max_len=n, backend=backend),
        "sdpa": partial(F.scaled_dot_product_attention, is_causal=causal),
    }


def training(n: int, mode: str, *, backend: str, repeats: int) -> Measurement:
    """Forward and backward."""
    terminal.status(f"forward and backward, {mode}, N={n:,}")
    causal = MODES[mode]
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM, requires_grad=True) for _ in range(3))
    gradient = torch.randn(1, HEADS, n, HEAD_DIM)

    def train(attend: Callable[..., Tensor]) -> None:
        torch.autograd.grad(attend(q, k, v), (q, k, v), gradient)

    actions = {name: partial(train, attend) for name, attend in attentions(n, causal, backend).items()}
    times = interleaved(actions, repeats=repeats)
    return compared(_operator("training", mode, n, backend, "sdpa"), times["cosformer"], times["sdpa"])


def training_memory(*, backend: str, threads: int) -> Measurement:
    """Memory of a training step in a fresh process, everything included, over the bytes of q, k, v and out."""
    terminal.status(f"peak memory, N={PEAK_LENGTH:,}")
    m = replace(_operator("training memory", "causal", PEAK_LENGTH, backend), unit="times the bytes of q, k, v and out")
    try:
        grown = in_fresh_process("cosformer.bench.attention:training_peak", threads, n=PEAK_LENGTH, backend=backend)
    except (RuntimeError, OSError) as error:
        return replace(m, better="lower", note=f"not run: {error}")
    tensors = 4 * PEAK_LENGTH * HEADS * HEAD_DIM * 4
    return measured(replace(m, better="lower", megabytes=round(grown / 1e6)), [grown / tensors])


def training_peak(n: int, backend: str) -> int:
    """Runs in a fresh process: nothing of torch is warm, and the inputs count."""

    def train() -> None:
        q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM, requires_grad=True) for _ in range(3))
        out = cosformer_attention(q, k, v, causal=True, max_len=n, backend=backend)
        out.backward(torch.randn_like(out))

    return peak_above_now(train)


def time_per_token(*, backend: str, repeats: int) -> Measurement:
    """Sixteen times the tokens should cost sixteen times the time."""
    terminal.status(f"forward over {MILLION:,} tokens")
    short = MILLION // 16
    q, k, v = (torch.randn(1, 1, MILLION, HEAD_DIM) for _ in range(3))

    def run(n: int) -> None:
        cosformer_attention(q[:, :, :n], k[:, :, :n], v[:, :, :n], causal=True, max_len=MILLION, backend=backend)

    with torch.no_grad():
        times = interleaved({"long": lambda: run(MILLION), "short": lambda: run(short)}, repeats=repeats)
    m = _operator("time per token", "causal", MILLION, backend, f"{short:,} tokens")
    m = replace(m, variant="one head", unit="times", better="lower")
    return compared(m, times["long"], [16 * x for x in times["short"]])


def late_step(*, backend: str, repeats: int) -> Measurement:
    """One token with a state: the cost must not depend on how many came before."""
    terminal.status("one-token steps")
    q, k, v = (torch.randn(1, HEADS, 1, HEAD_DIM) for _ in range(3))
    step = partial(cosformer_attention, q, k, v, causal=True, max_len=MILLION, return_state=True, backend=backend)

    def stepping(seen: int) -> Callable[[], Any]:
        state = replace(step()[1], position=torch.tensor(seen - 1))
        return lambda: step(state=state)

    with torch.no_grad():
        times = interleaved({"late": stepping(LATE_TOKEN), "early": stepping(10)}, repeats=max(repeats, 7))
    m = replace(_operator("step", "", LATE_TOKEN, backend, "token 10"), unit="times", better="lower")
    return compared(m, times["late"], times["early"])


def share(n: int, heads: int, d: int, e: int) -> float:
    """The least time of a call, in products of MATMUL x MATMUL matrices.

    8 H N D E operations: two products of the 2D features with the E values, forming the state and reading it.
    """
    return 8 * heads * n * d * e / (2 * MATMUL**3)


def matmul() -> Callable[[], Tensor]:
    a, b, c = (torch.randn(MATMUL, MATMUL) for _ in range(3))
    return lambda: torch.mm(a, b, out=c)


def _operator(kind: str, mode: str, n: int, backend: str, baseline: str = "") -> Measurement:
    given = "" if backend == "auto" else backend
    place: dict[str, Any] = {"kind": kind, "mode": mode, "length": n, "backend": given, "baseline": baseline}
    return Measurement(attention="cosformer", **place, unit="times faster", better="higher")


def _authors(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Tensor]:
    """The same numbers in that module's layout, contiguous there."""
    inputs = [x.permute(2, 0, 1, 3).flatten(2).contiguous() for x in (q, k, v)]
    return lambda: released_attention(*inputs, num_heads=HEADS, causal=causal)


def _too_big(n: int, causal: bool) -> str:
    need, have = released_bytes(n, HEADS, HEAD_DIM, causal), machine.memory("MemAvailable")
    return f"not run: needs {need / 1e9:.0f} GB, {have / 1e9:.0f} GB are free" if need > 0.7 * have else ""


def tables(results: Results) -> list[Table]:
    """Forward passes, lengths down and baselines across; then the rest."""
    shown = results.find(kind="forward")
    columns = {"sdpa": "SDPA", "authors": "authors' implementation", "limit": "matmul limit"}
    shown.sort(key=lambda m: (m.mode, [*columns].index(m.baseline)))
    title = (
        "Forward pass, float32, one sequence, 8 heads of 64 channels: how many times faster cosFormer is than torch's "
        "softmax attention (SDPA) and than the authors' implementation, and how many times slower than the machine's "
        f"matrix multiplication allows ({SPREAD}; at short lengths the difference in µs)."
    )
    return [crossed(title, shown, length, lambda m: f"{m.mode}, {columns[m.baseline]}", "N"), rest(results, shown)]


def markers(results: Results) -> dict[str, str]:
    """What documents show of the results besides the first table, by marker."""
    start = faster_from(results.find(kind="forward", baseline="sdpa"))  # in both modes
    return {"faster from": f"{start:,}" if start else "no measured number of", "speed": readme_table(results).markdown}


def readme_table(results: Results) -> Table:
    """For the README: long lengths, against SDPA alone."""
    shown = [m for m in results.find(kind="forward", baseline="sdpa") if (m.length or 0) >= 1024]
    title = f"How many times faster than torch's softmax attention, forward, 8 heads of 64 channels ({SPREAD}):"
    return crossed(title, shown, length, lambda m: m.mode, "tokens")


def faster_from(against: Iterable[Measurement]) -> int | None:
    """The length from which on cosFormer is faster than a baseline in all of ``against``, by the lower quartile."""
    run = [m for m in against if m.value is not None]
    slower = [m.length or 0 for m in run if m.unit == DIFFERENCE or (m.low or m.value or 0.0) <= 1]
    faster = [m.length or 0 for m in run if (m.length or 0) > max(slower, default=0)]
    return min(faster, default=None)
