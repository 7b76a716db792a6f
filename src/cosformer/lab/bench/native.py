"""``cosformer bench native``: the compiled kernels against the machine's limit, torch's attention and their own goals."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cosformer import terminal
from cosformer.lab.bench import output
from cosformer.lab.bench.results import Row

if TYPE_CHECKING:
    from torch import Tensor

    from cosformer.lab.bench.table import Table

MARKER = "bench native"
LENGTHS = (4096, 16384)
SHORT_LENGTHS = (128, 256, 1024)
SHAPE_LENGTH = 4096
STEPS = 10_000
MATMUL = 1024
MODES = {"causal": True, "non-causal": False}


@dataclass(frozen=True)
class Shape:
    """Sizes of one problem; ``slack``: how many times the goals of 8 heads of 64 channels it may take."""

    name: str
    heads: int = 8
    d: int = 64
    e: int = 64
    slack: float = 1.3

    def share(self, n: int) -> float:
        """Time at the limit, in products of ``MATMUL`` x ``MATMUL`` matrices.

        8 H N D E operations: two products of the 2D features with the E values, forming the state and reading it.
        """
        return 8 * self.heads * n * self.d * self.e / (2 * MATMUL**3)


PLAIN = Shape("8 heads of 64 channels", slack=1.0)
SHAPES = (
    Shape("8 heads of 32 channels", d=32, e=32),
    Shape("8 heads of 128 channels", d=128, e=128),
    Shape("8 heads of 256 channels", d=256, e=256),
    Shape("8 heads, 64 channels, 128 of values", e=128),
    Shape("8 heads, 128 channels, 48 of values", d=128, e=48),
    Shape("one head of 64 channels", heads=1),
)

# times the limit: as a user calls the operator, into an output that is there already, backward alone
LIMITS = {
    "non-causal": {"forward": 1.5, "kept": 1.25, "backward": 2.8},
    "causal": {"forward": 1.8, "kept": 1.5, "backward": 4.8},
}
WHAT = {"forward": "forward", "kept": "forward into a kept output", "backward": "backward"}
# times faster than scaled_dot_product_attention
AGAINST_SDPA = {
    ("non-causal", 4096): 28.0,
    ("non-causal", 16384): 95.0,
    ("causal", 4096): 12.0,
    ("causal", 16384): 42.0,
}
STEP_MICROSECONDS, STEP_OF_SUM, STEP_ERROR = 25.0, 3.0, 1e-5


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The limit is the time of 8 B H N D E operations at the rate of a 1024 x 1024 x 1024 matrix product, measured in turn"
        " with the kernel. Float32, one sequence, two threads, unless a row says otherwise. Run it on a quiet machine."
    )
    parser.add_argument("--threads", type=output.positive, default=2, help="default: %(default)s")
    parser.add_argument("--repeats", type=output.positive, default=15, help="of each timing (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="the shorter length and 5 repeats: one minute, not four")
    output.add_options(parser, MARKER)


def run(args: argparse.Namespace) -> int:
    return output.show(args, MARKER, measure, tables)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from cosformer import machine
    from cosformer.lab.bench.results import document
    from cosformer.ops import native

    if not native.available():
        raise ValueError(f"nothing to measure: {native.describe()}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    about = machine.describe(args.threads) | {"kernels": native.describe()}
    repeats = min(args.repeats, 5) if args.quick else args.repeats
    rows = list(_rows(LENGTHS[:1] if args.quick else LENGTHS, repeats))
    terminal.status("")
    words = ["bench", "native", *(["--quick"] if args.quick else [])]
    if args.threads != 2:
        words += ["--threads", str(args.threads)]
    settings = {"quick": args.quick, "repeats": repeats, "batch": 1, "dtype": "float32"}
    return document(rows, about, machine.provenance(words), settings)


def tables(found: dict[str, Any]) -> "list[Table]":
    from cosformer.lab.bench.results import rows_of
    from cosformer.lab.bench.table import goals

    return [goals(rows_of(found), "The compiled kernels (median and quartiles).")]


def _rows(lengths: tuple[int, ...], repeats: int) -> Iterator[Row]:
    for mode in MODES:
        for n in lengths:
            yield from against_limit(PLAIN, mode, n, repeats)
            yield against_sdpa(mode, n, AGAINST_SDPA[mode, n], repeats)
        for n in SHORT_LENGTHS:
            yield against_sdpa(mode, n, 1.0, repeats)
    for shape in SHAPES:
        for mode in MODES:
            yield from against_limit(shape, mode, SHAPE_LENGTH, repeats)
    for mode in MODES:
        yield from half_precision(mode, SHAPE_LENGTH, repeats)
    yield one_step(repeats)
    yield many_steps(repeats)
    yield steps_error()


def _tensors(shape: Shape, n: int, dtype: Any = None, batch: int = 1) -> "tuple[Tensor, Tensor, Tensor]":
    import torch

    q, k = (torch.randn(batch, shape.heads, n, shape.d, dtype=dtype) for _ in range(2))
    return q, k, torch.randn(batch, shape.heads, n, shape.e, dtype=dtype)


def _actions(shape: Shape, causal: bool, n: int, dtype: Any = None) -> dict[str, Callable[[], Any]]:
    """Forward as a user calls it, forward into a kept output, and backward alone, ready to be timed."""
    import torch

    from cosformer.ops import native
    from cosformer.ops.operator import cosformer_attention
    from cosformer.ops.spec import AttentionSpec

    q, k, v = _tensors(shape, n, dtype)
    problem = AttentionSpec(True, causal, 0, 0, n, n, "clamp", 1e-6)
    kept = torch.empty(1, shape.heads, n, shape.e, dtype=dtype)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out, gradient = cosformer_attention(*leaves, causal=causal, max_len=n), torch.randn_like(v)
    return {
        "forward": lambda: cosformer_attention(q, k, v, causal=causal, max_len=n),
        "kept": lambda: native.forward(q, k, v, None, None, None, None, problem, out=kept),
        "backward": lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True),
    }


def against_limit(shape: Shape, mode: str, n: int, repeats: int) -> Iterator[Row]:
    """Forward and backward in multiples of the time that matrix products of as many operations take."""
    import torch

    from cosformer.lab.bench.measure import interleaved, spread
    from cosformer.lab.bench.results import measured

    terminal.status(f"{shape.name}, {mode}, N={n:,}, against the limit")
    a, b, c = (torch.randn(MATMUL, MATMUL) for _ in range(3))
    actions = {"limit": lambda: torch.mm(a, b, out=c), **_actions(shape, MODES[mode], n)}
    times = interleaved(actions, repeats=repeats, settle=True)
    share = shape.share(n)
    for name, goal in LIMITS[mode].items():
        what = f"{mode} {WHAT[name]}, N={n:,}, {shape.name}"
        row_id = f"native/{name}/{mode}/{n}/{shape.heads}x{shape.d}x{shape.e}"
        ratios = [ours / (limit * share) for ours, limit in zip(times[name], times["limit"], strict=True)]
        milliseconds = {name: _ms(times[name]), "limit": _ms([share * x for x in times["limit"]])}
        goal = round(goal * shape.slack, 2)
        row = Row(row_id, what, "times the limit", "lower", goal=goal, milliseconds=milliseconds)
        yield measured(row, spread(ratios))


def against_sdpa(mode: str, n: int, goal: float, repeats: int) -> Row:
    import torch
    import torch.nn.functional as F

    from cosformer.lab.bench.measure import interleaved, ratio
    from cosformer.lab.bench.results import measured
    from cosformer.ops.operator import cosformer_attention

    terminal.status(f"{mode}, N={n:,}, against SDPA")
    causal = MODES[mode]
    q, k, v = _tensors(PLAIN, n)
    actions: dict[str, Callable[[], Any]] = {
        "cosformer": lambda: cosformer_attention(q, k, v, causal=causal, max_len=n),
        "sdpa": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
    }
    with torch.no_grad():
        times = interleaved(actions, repeats=repeats, settle=n <= max(SHORT_LENGTHS))
    milliseconds = {name: _ms(samples) for name, samples in times.items()}
    what = f"{mode} forward, N={n:,}, against SDPA"
    row = Row(f"native/sdpa/{mode}/{n}", what, "times faster", "higher", goal=goal, milliseconds=milliseconds)
    return measured(row, ratio(times["sdpa"], times["cosformer"]))


def half_precision(mode: str, n: int, repeats: int) -> Iterator[Row]:
    """bfloat16 in multiples of float32."""
    import torch

    from cosformer.lab.bench.measure import interleaved, ratio
    from cosformer.lab.bench.results import measured

    terminal.status(f"bfloat16, {mode}")
    actions = {
        (dtype, name): action
        for dtype in (torch.float32, torch.bfloat16)
        for name, action in _actions(PLAIN, MODES[mode], n, dtype).items()
        if name != "kept"
    }
    named = {f"{name} {dtype}": action for (dtype, name), action in actions.items()}
    # two times that are nearly equal take more samples to tell apart
    times = interleaved(named, repeats=4 * repeats, budget=40.0, settle=True)
    for name in ("forward", "backward"):
        half, single = times[f"{name} {torch.bfloat16}"], times[f"{name} {torch.float32}"]
        what = f"{mode} {name} in bfloat16, N={n:,}, against float32"
        row = Row(f"native/bfloat16/{name}/{mode}/{n}", what, "times the time", "lower", goal=1.0)
        yield measured(row, ratio(half, single))


def _stepping(batch: int) -> tuple[Callable[[], None], Any]:
    """A function that takes one token behind the state of the last, and the first state."""
    from cosformer.ops.operator import cosformer_attention

    q, k, v = _tensors(PLAIN, 1, batch=batch)
    settings: dict[str, Any] = {"causal": True, "max_len": 2**40, "return_state": True}
    first = cosformer_attention(q, k, v, **settings)[1]
    state = first

    def step() -> None:
        nonlocal state
        _, state = cosformer_attention(q, k, v, state=state, **settings)

    return step, first


def one_step(repeats: int) -> Row:
    """The time of one token, Python included."""
    from cosformer.lab.bench.measure import interleaved, spread
    from cosformer.lab.bench.results import measured

    terminal.status("one-token steps")
    times = interleaved({"step": _stepping(1)[0]}, repeats=max(6 * repeats, 9), settle=True)
    row = Row("native/step/1", f"one-token step, {PLAIN.name}", "µs", "lower", goal=STEP_MICROSECONDS)
    return measured(row, spread([1e6 * x for x in times["step"]]))


def many_steps(repeats: int, batch: int = 128) -> Row:
    """One token of many sequences, against reading their states once."""
    from cosformer.lab.bench.measure import interleaved, ratio
    from cosformer.lab.bench.results import measured

    terminal.status(f"one-token steps of {batch} sequences")
    step, state = _stepping(batch)
    times = interleaved({"step": step, "sum": lambda: state.kv.sum()}, repeats=max(repeats, 9), settle=True)
    what = f"one-token step of {batch} sequences, {state.kv.nbytes / 1e6:.0f} MB of state, against state.sum()"
    milliseconds = {name: _ms(samples) for name, samples in times.items()}
    row = Row(f"native/step/{batch}", what, "times the time", "lower", goal=STEP_OF_SUM, milliseconds=milliseconds)
    return measured(row, ratio(times["step"], times["sum"]))


def steps_error(n: int | None = None) -> Row:
    """How far single-precision steps are from float64, relative to the largest output."""
    import torch

    from cosformer.lab.bench.measure import spread
    from cosformer.lab.bench.results import measured
    from cosformer.ops.operator import cosformer_attention

    n = STEPS if n is None else n
    terminal.status(f"{n:,} steps against float64")
    q, k, v = _tensors(Shape("", heads=2), n)
    exact = cosformer_attention(q.double(), k.double(), v.double(), causal=True, max_len=n, backend="chunked")
    state, outs = None, []
    for one in zip(*(x.split(1, dim=2) for x in (q, k, v)), strict=True):
        out, state = cosformer_attention(*one, causal=True, max_len=n, state=state, return_state=True)
        outs.append(out)
    error = (torch.cat(outs, dim=2).double() - exact).abs().max() / exact.abs().max()
    what = f"{n:,} one-token steps in float32 against float64: error in millionths of the largest output"
    row = Row(f"native/steps/{n}", what, "millionths", "lower", goal=1e6 * STEP_ERROR)
    return measured(row, spread([1e6 * error.item()]))


def _ms(samples: list[float]) -> float:
    from cosformer.lab.bench.measure import spread

    return float(f"{1e3 * spread(samples).median:.4g}")
