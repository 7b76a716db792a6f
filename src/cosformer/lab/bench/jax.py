"""``cosformer bench jax``: the JAX operator beside torch's native kernels and JAX's own softmax attention; its memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from cosformer import terminal
from cosformer.extras import require
from cosformer.lab.bench.measure import compared, in_fresh_process, interleaved, peak_above_now
from cosformer.lab.records import Measurement
from cosformer.ops.operator import cosformer_attention

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
        call = {"n": n, "causal": mode == "causal", "backward": kind != "forward"}
        size = in_fresh_process("cosformer.lab.bench.jax:peak", threads, **call)
        yield replace(_of(kind, mode, n), variant="memory", value=round(size / 1e6, 1))


def _of(kind: str, mode: str, n: int) -> Measurement:
    about: dict[str, Any] = {"attention": "cosformer", "backend": "jax", "mode": mode, "length": n}
    return Measurement(kind=kind, unit="MB", better="lower", **about)


def peak(n: int, causal: bool, backward: bool) -> int:
    """Bytes above the inputs, results among them, in the second call: the first one compiles."""
    call = _jax(n, causal, backward)["ours"]
    call()
    return peak_above_now(call)


def _jax(n: int, causal: bool, backward: bool) -> dict[str, Action]:
    jax = require("jax", "jax")
    from cosformer.jax import cosformer_attention as attend

    def softmax(q: Any, k: Any, v: Any) -> Any:
        """In its own layout, [batch, length, heads, channels]."""
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    def ready(function: Callable[..., Any], shape: tuple[int, ...]) -> Action:
        def loss(q: Any, k: Any, v: Any) -> Any:
            return function(q, k, v).sum()

        compiled = jax.jit(jax.grad(loss, (0, 1, 2)) if backward else function)
        tensors = [jax.random.normal(jax.random.key(i), shape) for i in range(3)]
        return lambda: jax.block_until_ready(compiled(*tensors))

    found = {"ours": ready(lambda q, k, v: attend(q, k, v, causal=causal), (1, HEADS, n, HEAD_DIM))}
    if n <= SOFTMAX_UP_TO:
        found[SOFTMAX] = ready(softmax, (1, n, HEADS, HEAD_DIM))
    return found


def _torch(n: int, causal: bool, backward: bool) -> Action:
    q, k, v = (torch.randn(1, HEADS, n, HEAD_DIM, requires_grad=backward) for _ in range(3))

    def call() -> Any:
        out = cosformer_attention(q, k, v, causal=causal)
        return torch.autograd.grad(out.sum(), (q, k, v)) if backward else out

    return call
