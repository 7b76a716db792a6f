"""The family of linear attentions behind one call: picks the form, keeps the state, works in any dtype.

:func:`attend` serves the cosFormer operator and, through :func:`linear_attention`, every feature-map attention of the zoo, so
that all of them run on the same kernels.
"""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops import backends
from cosformer.ops.autocast import autocast_enabled, without_autocast
from cosformer.ops.checks import check_state, check_tensors
from cosformer.ops.chunk import FP16_MAX
from cosformer.ops.dense import dense_attention, dense_forward, dense_state, hide
from cosformer.ops.factored import factored_attention
from cosformer.ops.gradient import LinearKernel
from cosformer.ops.library import check_room
from cosformer.ops.normaliser import check_normaliser
from cosformer.ops.problem import Problem, accumulator, usable_eps
from cosformer.ops.state import LinearState
from cosformer.ops.step import attend_one
from cosformer.ops.watchers import needs_gradients, unwatched


def linear_attention(
    fq: Tensor,
    fk: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    key_mask: Tensor | None = None,
    state: LinearState | None = None,
    return_state: bool = False,
    relu: bool = False,
    normaliser: str = "clamp",
    eps: float = 1e-6,
    backend: str = "auto",
) -> Any:
    """Attention with weights ``fq_i . fk_j``, in time and memory linear in the length.

    ``fq [B,H,N,F]``, ``fk [B,Hk,S,F]``, ``v [B,Hk,S,E]`` -> ``out [B,H,N,E]``, or ``(out, state)`` with ``return_state``.
    ``key_mask`` bool ``[B,S]``, True = may be attended. Causal: N = S, or the queries are the last N of the S new positions.
    ``relu`` applies ReLU to both features inside the kernel. ``normaliser``: the row sum is clamped at eps (``clamp``), gets
    eps added (``add``), keeps its sign away from zero (``signed``), or is not divided by (``none``).
    """
    check_normaliser(normaliser)
    check_tensors(fq, fk, v, key_mask)
    if causal and fq.shape[2] > fk.shape[2]:
        raise ValueError(f"causal attention of N={fq.shape[2]} queries over S={fk.shape[2]} keys: N must be at most S")
    if state is not None:
        check_state(state, fk, v, fk.shape[3], 0)
    backends.check_backend(backend, fq, fk, v)
    problem = Problem(relu, causal, 0, 0, 0, 0, normaliser, usable_eps(eps, v.dtype))
    return attend(fq, fk, v, key_mask, None, problem, state, return_state, max_len=0, backend=backend)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    p: Problem,
    state: LinearState | None,
    return_state: bool,
    *,
    max_len: int,
    backend: str,
) -> Any:
    """Run ``p`` on checked input; ``out``, or ``(out, state)``.

    Key positions in ``p`` count from the first key of this call, and so do those of causal queries; other queries' positions
    are absolute.
    """
    kv, z, start = None, None, None
    position: Any = None
    if state is not None:
        kv, z = state.kv, state.z
        p, start, position = _move(p, state.position, k.shape[2], max_len)
    elif return_state:
        position = torch.full((), k.shape[2], dtype=torch.int64, device="cpu")
    if autocast_enabled(q.device):
        with without_autocast(q.device):
            out, kv, z = _compute(q, k, v, kv, z, key_mask, cu_seqlens, p, start, backend, return_state)
    else:
        out, kv, z = _compute(q, k, v, kv, z, key_mask, cu_seqlens, p, start, backend, return_state)
    return (out, LinearState(kv, z, position, max_len)) if return_state else out


def _move(p: Problem, seen: Tensor, tokens: int, max_len: int) -> tuple[Problem, Tensor | None, Tensor]:
    """``p`` placed behind the state's tokens, the shift if only a graph knows it, and the state's next position."""
    if not torch.compiler.is_compiling():
        first = int(seen)
        check_room(first, tokens, max_len)
        q_first = p.q_first + first if p.causal else p.q_first
        return p._replace(q_first=q_first, k_first=p.k_first + first), None, seen + tokens
    # an exported graph is free of our operators here, so it can go to ONNX; it cannot refuse to run past max_len
    ahead = seen + tokens if backends.is_exporting() else torch.ops.cosformer.advance(seen, tokens, max_len)
    return p, ahead - tokens, ahead


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    z: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    p: Problem,
    start: Tensor | None,
    backend: str,
    need_state: bool,
) -> tuple[Tensor, Any, Any]:
    if backend == "auto":
        one_token = need_state and p.causal and q.shape[2] == k.shape[2] == 1
        backend = "step" if one_token else backends.choose(q, k, v, cu_seqlens)
        # asked first whether a compiler watches: the lengths must not become guards of its graph
        plain = not need_state and kv is None and unwatched(q, k, v)
        if plain and backends.fits_compiled_dense(q, k, v, cu_seqlens, p):
            return backends.kernel("native").dense(q, k, v, key_mask, p), None, None
    if backend == "chunked" and torch.compiler.is_compiling() and not p.causal and cu_seqlens is None:
        backend = "factored"
    if backend not in _PLAIN_FORMS:
        return _run_kernel((q, k, v, kv, z, key_mask, cu_seqlens), p, start, backend)
    if backend == "step" and not backends.why_not("native", q, k, v) and unwatched(q, k, v, kv, z):
        return backends.kernel("native").step(q, k, v, kv, z, key_mask, p)
    if start is not None:
        p = p._replace(q_first=p.q_first + start if p.causal else p.q_first, k_first=p.k_first + start)
    k, v = hide(k, key_mask), hide(v, key_mask)
    dtype = v.dtype
    if accumulator(dtype) != dtype:
        q, k, v = _widen(q), _widen(k), _widen(v)
    if backend == "dense":
        out = dense_forward(q, k, v, kv, z, cu_seqlens, p)
        if need_state:
            kv, z = dense_state(k, v, kv, z, p)
    else:
        out, kv, z = _PLAIN_FORMS[backend](q, k, v, kv, z, p)
    return out.to(dtype), kv, z


def _run_kernel(
    arguments: tuple[Tensor | None, ...], p: Problem, start: Tensor | None, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    if unwatched(*arguments):
        out, _, kv, z = backends.kernel(backend).forward(*arguments, p)
    elif (torch.compiler.is_compiling() or torch._C._is_tracing()) and not needs_gradients(*arguments):
        out, _, kv, z = torch.ops.cosformer.linear_forward(*arguments, start, *p, backend)
    else:
        out, _, kv, z = LinearKernel.apply(*arguments, start, *p, backend)  # pyright: ignore
    return out, kv, z


_PLAIN_FORMS = {"dense": dense_attention, "factored": factored_attention, "step": attend_one}


class _SaturatingWiden(torch.autograd.Function):
    """float16 -> float32; the gradient saturates on its way back, because rows with a tiny sum have huge ones."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.float()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad.clamp(-FP16_MAX, FP16_MAX).half()


def _widen(x: Tensor) -> Tensor:
    return _SaturatingWiden.apply(x) if x.dtype == torch.float16 and x.requires_grad else x.float()  # pyright: ignore
