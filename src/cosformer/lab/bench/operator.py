"""The operator's benchmark: against torch's own attention, the released way of computing, and the machine's limit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer import machine, terminal
from cosformer.lab.bench.measure import in_fresh_process, interleaved, peak_above_now, ratio, spread
from cosformer.lab.bench.released import released_attention, released_bytes
from cosformer.lab.bench.results import DIFFERENCE, Row, measured
from cosformer.ops.operator import cosformer_attention

HEADS, HEAD_DIM = 8, 64
SHORT = 64  # below it a call takes microseconds, and a difference says more than a ratio
LINEAR_FROM = 1024  # from here on the released form and the matmul limit are measured too
BACKWARD_UP_TO = 4096
PEAK_LENGTH = 65_536
MILLION = 1_048_576
LATE_TOKEN = 1_000_000

# what the operator is meant to reach on two cores: times faster than SDPA
_FORWARD_GOALS = {
    ("causal", 4096): 5.0,
    ("causal", 16384): 16.0,
    ("non-causal", 4096): 11.0,
    ("non-causal", 16384): 40.0,
}
_BACKWARD_GOALS = {("causal", 4096): 5.0, ("non-causal", 4096): 11.0}
_SLOWEST_RATIO, _MOST_MICROSECONDS = 1 / 1.3, 60.0
_PEAK_GOAL, _MILLION_GOAL, _STEP_GOAL = 4.0, 1.25, 1.1
_MATMUL = 1024
_MODES = {"causal": True, "non-causal": False}


def rows(lengths: Sequence[int], *, backend: str, repeats: int, threads: int) -> Iterator[Row]:
    """Every row of the benchmark, in the order of the tables."""
    for n in lengths:
        for mode in _MODES:
            yield from forward(n, mode, backend=backend, repeats=repeats)
    trained = [n for n in lengths if LINEAR_FROM <= n <= BACKWARD_UP_TO]
    for n in trained[-1:]:
        for mode in _MODES:
            yield from training(n, mode, backend=backend, repeats=repeats)
    yield peak(backend=backend, threads=threads)
    yield million(backend=backend, repeats=repeats)
    yield decoding(backend=backend, repeats=repeats)


def forward(n: int, mode: str, *, backend: str, repeats: int, baselines: bool = True) -> Iterator[Row]:
    """One forward pass without gradients. ``baselines``: also the released form and the limit, for long input."""
    terminal.status(f"forward, {mode}, N={n:,}")
    causal = _MODES[mode]
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM) for _ in range(3))
    actions: dict[str, Callable[[], Any]] = {
        "cosformer": lambda: cosformer_attention(q, k, v, causal=causal, max_len=n, backend=backend),
        "sdpa": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
    }
    baselines = baselines and n >= LINEAR_FROM
    too_big = ""
    if baselines:
        actions["matmul"] = _matmul()
        too_big = _too_big(n, causal)
        if not too_big:
            actions["released"] = _released(q, k, v, causal)
    with torch.no_grad():
        times = interleaved(actions, repeats=repeats)
    yield _against(
        "sdpa", f"forward/{mode}/{n}", f"{mode} forward, N={n:,}, against SDPA", times, _FORWARD_GOALS.get((mode, n)), n
    )
    if not baselines:
        return
    row = Row(
        f"forward/{mode}/{n}/released", f"{mode} forward, N={n:,}, against the released way", "times faster", "higher"
    )
    yield (
        replace(row, note=too_big)
        if too_big
        else measured(
            replace(row, milliseconds=_milliseconds(times, "cosformer", "released")),
            ratio(times["released"], times["cosformer"]),
        )
    )
    # 8 B H N D E operations: two products of 2D-wide features with [v, 1], forming the state and reading it
    share = 8 * HEADS * n * HEAD_DIM**2 / (2 * _MATMUL**3)
    row = Row(
        f"forward/{mode}/{n}/limit", f"{mode} forward, N={n:,}, against the matmul limit", "times the limit", "lower"
    )
    row = replace(row, milliseconds=_milliseconds(times, "cosformer", "matmul"))
    yield measured(row, spread([a / (b * share) for a, b in zip(times["cosformer"], times["matmul"], strict=True)]))


def training(n: int, mode: str, *, backend: str, repeats: int) -> Iterator[Row]:
    """Forward and backward."""
    terminal.status(f"forward + backward, {mode}, N={n:,}")
    causal = _MODES[mode]
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM, requires_grad=True) for _ in range(3))
    gradient = torch.randn(1, HEADS, n, HEAD_DIM)

    def train(attend: Callable[..., Tensor]) -> None:
        torch.autograd.grad(attend(q, k, v), (q, k, v), gradient)

    ours = partial(cosformer_attention, causal=causal, max_len=n, backend=backend)
    theirs = partial(F.scaled_dot_product_attention, is_causal=causal)
    times = interleaved({"cosformer": lambda: train(ours), "sdpa": lambda: train(theirs)}, repeats=repeats)
    what = f"{mode} forward + backward, N={n:,}, against SDPA"
    yield _against("sdpa", f"training/{mode}/{n}", what, times, _BACKWARD_GOALS.get((mode, n)), n)


def peak(*, backend: str, threads: int) -> Row:
    """Memory of a training step in a fresh process, everything included, over the bytes of q, k, v and out."""
    terminal.status(f"peak memory, N={PEAK_LENGTH:,}")
    row = Row(
        f"memory/causal/{PEAK_LENGTH}",
        f"causal forward + backward, N={PEAK_LENGTH:,}: peak memory above the start (inputs and gradients included)",
        "times the bytes of q, k, v and out",
        "lower",
        goal=_PEAK_GOAL,
    )
    try:
        grown = in_fresh_process("cosformer.lab.bench.operator:training_peak", threads, n=PEAK_LENGTH, backend=backend)
    except (RuntimeError, OSError) as error:
        return replace(row, note=f"not run: {error}")
    tensors = 4 * PEAK_LENGTH * HEADS * HEAD_DIM * 4
    return measured(replace(row, note=f"{grown / 1e6:,.0f} MB"), spread([grown / tensors]))


def training_peak(n: int, backend: str) -> int:
    """Runs in a fresh process: nothing of torch is warm, and the inputs count."""

    def train() -> None:
        q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM, requires_grad=True) for _ in range(3))
        out = cosformer_attention(q, k, v, causal=True, max_len=n, backend=backend)
        out.backward(torch.randn_like(out))

    return peak_above_now(train)


def million(*, backend: str, repeats: int) -> Row:
    """Sixteen times the tokens should cost sixteen times the time."""
    terminal.status(f"forward over {MILLION:,} tokens")
    short = MILLION // 16
    q, k, v = (torch.randn(1, 1, MILLION, HEAD_DIM) for _ in range(3))

    def run(n: int) -> None:
        cosformer_attention(q[:, :, :n], k[:, :, :n], v[:, :, :n], causal=True, max_len=MILLION, backend=backend)

    with torch.no_grad():
        times = interleaved({"long": lambda: run(MILLION), "short": lambda: run(short)}, repeats=repeats)
    row = Row(
        f"growth/causal/{MILLION}",
        f"causal forward over {MILLION:,} tokens (one head): time per token, against {short:,} tokens",
        "times",
        "lower",
        goal=_MILLION_GOAL,
        milliseconds=_milliseconds(times, "long", "short"),
    )
    return measured(row, spread([a / b / 16 for a, b in zip(times["long"], times["short"], strict=True)]))


def decoding(*, backend: str, repeats: int) -> Row:
    """One token with a state: the cost must not depend on how many came before."""
    terminal.status("one-token steps")
    q, k, v = (torch.randn(1, HEADS, 1, HEAD_DIM) for _ in range(3))
    step = partial(cosformer_attention, q, k, v, causal=True, max_len=MILLION, return_state=True, backend=backend)

    def stepping(seen: int) -> Callable[[], object]:
        state = replace(step()[1], position=torch.tensor(seen - 1))
        return lambda: step(state=state)

    with torch.no_grad():
        times = interleaved({"late": stepping(LATE_TOKEN), "early": stepping(10)}, repeats=max(repeats, 7))
    row = Row(
        f"step/{LATE_TOKEN}",
        f"one-token step at token {LATE_TOKEN:,}, against token 10",
        "times",
        "lower",
        goal=_STEP_GOAL,
        milliseconds=_milliseconds(times, "late", "early"),
    )
    return measured(row, ratio(times["late"], times["early"]))


def _against(other: str, row_id: str, what: str, times: dict[str, list[float]], goal: float | None, n: int) -> Row:
    """How many times faster than ``other``; below 64 tokens, how many microseconds more."""
    ours, theirs, names = times["cosformer"], times[other], _milliseconds(times, "cosformer", other)
    if n < SHORT:
        row = Row(f"{row_id}/{other}", what, DIFFERENCE, "lower", goal=_MOST_MICROSECONDS, milliseconds=names)
        return measured(row, spread([1e6 * (a - b) for a, b in zip(ours, theirs, strict=True)]))
    if n <= 4 * SHORT:
        goal = float(f"{_SLOWEST_RATIO:.2f}")
    row = Row(f"{row_id}/{other}", what, "times faster", "higher", goal=goal, milliseconds=names)
    return measured(row, ratio(theirs, ours))


def _milliseconds(times: dict[str, list[float]], *names: str) -> dict[str, float]:
    return {name: float(f"{1e3 * spread(times[name]).median:.4g}") for name in names}


def _matmul() -> Callable[[], Tensor]:
    a, b, c = (torch.randn(_MATMUL, _MATMUL) for _ in range(3))
    return lambda: torch.mm(a, b, out=c)


def _released(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Tensor]:
    """The same numbers in that module's layout, contiguous there."""
    inputs = [x.permute(2, 0, 1, 3).flatten(2).contiguous() for x in (q, k, v)]
    return lambda: released_attention(*inputs, num_heads=HEADS, causal=causal)


def _too_big(n: int, causal: bool) -> str:
    need, have = released_bytes(n, HEADS, HEAD_DIM, causal), machine.memory("MemAvailable")
    return f"not run: needs {need / 1e9:.0f} GB, {have / 1e9:.0f} GB are free" if need > 0.7 * have else ""
