"""``python -m benchmarks jax``: the JAX operator against torch's native kernels and JAX's softmax attention."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from cosformer import terminal
from cosformer.bench.measure import compared, interleaved
from cosformer.bench.tables import SPREAD, crossed, growth, lengths_of
from cosformer.extras import require
from cosformer.ops.operator import cosformer_attention
from cosformer.report.measurements import Measurement, Results, number
from cosformer.report.table import Table
from cosformer.runs import NOT_RUN

HEADS, HEAD_DIM = 8, 64
TORCH, SOFTMAX = "cosformer in torch", "jax.nn.dot_product_attention"
SOFTMAX_UP_TO = 4096  # its matrix of 8 heads takes 0.5 GB there, and 8.6 GB at 16,384 tokens
KINDS = ("forward", "forward and backward")
QUICK = {"lengths": (1024,), "memory_lengths": (), "repeats": 3}
Action = Callable[[], Any]


def measurements(
    *,
    lengths: Sequence[int] = (1024, 4096, 16384),
    memory_lengths: Sequence[int] = (16384, 65536),
    repeats: int = 5,
    threads: int = 2,
) -> Iterator[Measurement]:
    """Time of ours in JAX over the others', and its memory; XLA takes as many threads as the machine has cores."""
    calls = [(mode, kind) for mode in ("causal", "non-causal") for kind in KINDS]
    for n, mode, kind in [(n, *call) for n in lengths for call in calls]:
        terminal.status(f"{mode} {kind}, N={n:,}")
        actions = _jax(n, mode == "causal", kind != "forward")
        actions[TORCH] = _torch(n, mode == "causal", kind != "forward")
        times = interleaved(actions, repeats=repeats)
        for baseline in (TORCH, SOFTMAX):
            m = replace(_of(kind, mode, n), baseline=baseline, unit="times the time")
            yield compared(m, times["ours"], times.get(baseline))
    for n, mode, kind in [(n, *call) for n in memory_lengths for call in calls]:
        terminal.status(f"memory, {mode} {kind}, N={n:,}")
        size = allocated(n, mode == "causal", kind != "forward")
        yield replace(_of(kind, mode, n), variant="memory", value=round(size / 1e6, 1))


def _of(kind: str, mode: str, n: int) -> Measurement:
    about: dict[str, Any] = {"attention": "cosformer", "backend": "jax", "mode": mode, "length": n}
    return Measurement(kind=kind, unit="MB", better="lower", **about)


def allocated(n: int, causal: bool, backward: bool) -> int:
    """Bytes that XLA allocates for a call beside its inputs: temporaries and results, by its plan of the compiled
    program.

    Not the peak of the process: XLA gives memory back when it likes, and two runs differed by a third.
    """
    jax = require("jax", "jax")
    shape = jax.ShapeDtypeStruct((1, HEADS, n, HEAD_DIM), "float32")
    plan = _compiled(_ours(causal), backward, [shape] * 3).memory_analysis()
    return plan.temp_size_in_bytes + plan.output_size_in_bytes


def _jax(n: int, causal: bool, backward: bool) -> dict[str, Action]:
    jax = require("jax", "jax")

    def softmax(q: Any, k: Any, v: Any) -> Any:
        """In its own layout, [batch, length, heads, channels]."""
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    def ready(function: Callable[..., Any], shape: tuple[int, ...]) -> Action:
        tensors = [jax.random.normal(jax.random.key(i), shape) for i in range(3)]
        compiled = _compiled(function, backward, tensors)
        return lambda: jax.block_until_ready(compiled(*tensors))

    found = {"ours": ready(_ours(causal), (1, HEADS, n, HEAD_DIM))}
    if n <= SOFTMAX_UP_TO:
        found[SOFTMAX] = ready(softmax, (1, n, HEADS, HEAD_DIM))
    return found


def _ours(causal: bool) -> Callable[..., Any]:
    from cosformer.jax import cosformer_attention as attend

    return lambda q, k, v: attend(q, k, v, causal=causal)


def _compiled(function: Callable[..., Any], backward: bool, arguments: Sequence[Any]) -> Any:
    """The function, or its gradient in all arguments, compiled for arguments of these shapes."""
    import jax

    gradient = jax.grad(lambda q, k, v: function(q, k, v).sum(), (0, 1, 2))
    return jax.jit(gradient if backward else function).lower(*arguments).compile()


def _torch(n: int, causal: bool, backward: bool) -> Action:
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM, requires_grad=backward) for _ in range(3))

    def call() -> Any:
        out = cosformer_attention(q, k, v, causal=causal)
        return torch.autograd.grad(out.sum(), (q, k, v)) if backward else out

    return call


IN_DOCUMENTS = 2  # time and memory


def tables(results: Results) -> list[Table]:
    memory = results.find(variant="memory")
    times = [m for m in results.measurements if m not in memory]
    title = f"Time of the JAX operator in multiples of the time of others ({SPREAD}); below 1 JAX's is faster."
    lengths, sizes = lengths_of(memory), []
    for mode, kind in dict.fromkeys((m.mode, m.kind) for m in memory):
        values = [m.value or 0.0 for n in lengths for m in memory if (m.mode, m.kind, m.length) == (mode, kind, n)]
        sizes.append([f"{mode}, {kind}", *map(number, values), growth(lengths, values)])
    above = (
        "Memory that XLA allocates for the JAX operator beside its inputs, results included: MB by length, and "
        "how it grows."
    )
    above = above if times else f"Times: {NOT_RUN}. {above}"
    return [
        crossed(title, times, lambda m: f"{m.mode}, {m.kind}, N={m.length:,}", lambda m: m.baseline),
        Table(above, ["", *(f"{n:,}" for n in lengths), "growth"], sizes),
    ]
