"""``cosformer bench jax``: the JAX operator beside torch's native kernels and JAX's own softmax attention."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from cosformer import terminal
from cosformer.extras import require
from cosformer.lab.bench.measure import compared, interleaved
from cosformer.lab.records import Measurement
from cosformer.ops.operator import cosformer_attention

HEADS, HEAD_DIM = 8, 64
TORCH, SOFTMAX = "cosformer in torch", "jax.nn.dot_product_attention"
SOFTMAX_UP_TO = 4096  # its matrix of 8 heads takes 0.5 GB there, and 8.6 GB at 16,384 tokens
QUICK = {"lengths": (1024,), "repeats": 3}
Action = Callable[[], Any]


def measurements(
    *, lengths: Sequence[int] = (1024, 4096, 16384), repeats: int = 5, threads: int = 2
) -> Iterator[Measurement]:
    """Time of ours in JAX over the others'; XLA takes as many threads as the machine has cores."""
    for n in lengths:
        for mode in ("causal", "non-causal"):
            for kind in ("forward", "forward and backward"):
                terminal.status(f"{mode} {kind}, N={n:,}")
                actions = _jax(n, mode == "causal", kind != "forward")
                actions[TORCH] = _torch(n, mode == "causal", kind != "forward")
                times = interleaved(actions, repeats=repeats)
                for baseline in (TORCH, SOFTMAX):
                    m = Measurement(
                        kind=kind, attention="cosformer", mode=mode, length=n, backend="jax", baseline=baseline,
                        unit="times the time", better="lower",
                    )  # fmt: skip
                    yield compared(m, times["ours"], times.get(baseline))


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
