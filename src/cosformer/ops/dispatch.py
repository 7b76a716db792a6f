"""The one place that picks the form of a call, and runs it: every call of the family comes through :func:`attend`."""

import torch
from torch import Tensor

from cosformer.ops import native, triton
from cosformer.ops.backends import COMPILED, DENSE_UP_TO
from cosformer.ops.checks import autocast_enabled, check_room, without_autocast
from cosformer.ops.dense import dense_forward, dense_state, hide, packed_lengths, widen
from cosformer.ops.factored import attend_one, factored_attention
from cosformer.ops.spec import AttentionSpec, accumulator
from cosformer.ops.state import LinearState
from cosformer.ops.torch_ops import can_bypass_dispatcher, linear_kernel

# missing in torch 2.6, which refuses exports
is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)
# torch 2.6 to 2.10 compile some calls wrongly (a step past max_len does not raise) and export few
traceable = torch.__version__ >= "2.12"  # compared as versions, not as strings


def _refuse_to_be_traced() -> None:
    raise RuntimeError(
        f"torch.compile and torch.export of cosformer's attention need torch 2.12 or later, and this is {torch.__version__};"
        " call it without them, or install a newer torch"
    )


# so that the compiler calls it, and its sentence is seen: a traced `raise` would only end the graph
_refuse_to_be_traced._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    spec: AttentionSpec,
    state: LinearState | None,
    return_state: bool,
    *,
    max_len: int,
    backend: str,
) -> Tensor | tuple[Tensor, LinearState]:
    """Compute ``spec`` on checked input; ``out``, or ``(out, state)``.

    Key positions in ``spec`` count from the first key of this call, and so do those of causal queries; other queries'
    positions are absolute.
    """
    if not traceable and torch.compiler.is_compiling():
        _refuse_to_be_traced()
    kv, z, start = None, None, None
    position = torch.empty((), device="meta")  # of no state
    if state is not None:
        kv, z = state.kv, state.z
        spec, start, position = _behind(state.position, spec, k.shape[2], max_len)
    elif return_state:
        position = torch.full((), k.shape[2], dtype=torch.int64, device="cpu")
    form = pick_form(q, k, v, kv, z, cu_seqlens, spec, backend, return_state)
    tensors = (q, k, v, kv, z, key_mask, cu_seqlens)
    if autocast_enabled(q.device):
        with without_autocast(q.device):
            out, kv, z = _run(form, *tensors, spec, start, return_state)
    else:
        out, kv, z = _run(form, *tensors, spec, start, return_state)
    if not return_state:
        return out
    assert kv is not None and z is not None  # every form returns them when asked
    return out, LinearState(kv, z, position, max_len)


def _behind(
    seen: Tensor, spec: AttentionSpec, tokens: int, max_len: int
) -> tuple[AttentionSpec, Tensor | None, Tensor]:
    """``spec`` behind the state's tokens, how far it is still to be moved if only a graph knows, and the next position."""
    if not torch.compiler.is_compiling():
        first = int(seen)
        check_room(first, tokens, max_len)
        return spec.moved(first), None, seen + tokens
    # an exported graph is free of our operators here, so it can go to ONNX; it cannot refuse to run past max_len
    ahead = seen + tokens if is_exporting() else torch.ops.cosformer.advance(seen, tokens, max_len)
    return spec, ahead - tokens, ahead


def pick_form(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    z: Tensor | None,
    cu_seqlens: Tensor | None,
    spec: AttentionSpec,
    backend: str,
    return_state: bool,
) -> str:
    """A linear backend by its name, ``dense``, ``factored``, ``step``, or a compiled form that no other is called by:
    ``native dense``, ``native step`` and ``triton step``."""
    if backend == "auto":
        if return_state and spec.causal and q.shape[2] == k.shape[2] == 1:
            if not can_bypass_dispatcher(q, k, v, kv, z):
                return "step"
            compiled = [name for name, module in COMPILED.items() if not module.why_not(q, k, v)]
            return f"{compiled[0]} step" if compiled else "step"
        # asked first whether a compiler sees the call: the lengths must not become guards of its graph
        alone = not return_state and kv is None and cu_seqlens is None and can_bypass_dispatcher(q, k, v)
        if alone and not native.why_not(q, k, v) and native.fits_dense(q, k, spec):
            return "native dense"
        backend = choose(q, k, v, cu_seqlens)
    if backend in ("chunked", "batched") and torch.compiler.is_compiling() and not spec.causal and cu_seqlens is None:
        return "factored"  # free of loops, so that one graph serves every length
    return backend


def choose(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> str:
    """The backend that ``auto`` takes for these tensors."""
    # chunk by chunk keeps to a CPU's caches, all chunks at once saves a GPU its launches
    compiled, plain = ("native", "chunked") if q.device.type in ("cpu", "meta") else ("triton", "batched")
    # an exported program may run where the compiled kernels are not
    linear = plain if is_exporting() or COMPILED[compiled].why_not(q, k, v) else compiled
    short = cu_seqlens is None and all(_at_most(x.shape[2], DENSE_UP_TO[linear]) for x in (q, k))
    return "dense" if short else linear


def _at_most(length: int, limit: int) -> bool:
    """Whether ``length <= limit``; of an exported program, which cannot choose when it runs, for all its lengths."""
    if not is_exporting():
        return length <= limit
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # loads sympy

    return statically_known_true(length <= limit)


def _run(
    form: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    z: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    spec: AttentionSpec,
    start: Tensor | None,
    return_state: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """``out`` and the state after the keys, which some forms leave out where nobody wants it."""
    if form == "native dense":
        return native.dense(q, k, v, key_mask, spec), None, None
    if form == "native step":
        return native.step(q, k, v, kv, z, key_mask, spec)
    if form == "triton step":
        return triton.step(q, k, v, kv, z, key_mask, spec)
    if form not in ("dense", "factored", "step"):
        relu, causal, q_first, k_first, q_len, k_len, normaliser, eps, _ = spec
        # not _replace or a slice, which older compilers of torch do not follow
        spec = AttentionSpec(relu, causal, q_first, k_first, q_len, k_len, normaliser, eps, form)
        out, _, kv, z = linear_kernel((q, k, v, kv, z, key_mask, cu_seqlens), start, spec)
        return out, kv, z
    spec = spec if start is None else spec.moved(start)
    dtype = v.dtype
    k, v = hide(k, key_mask), hide(v, key_mask)
    if accumulator(dtype) != dtype:
        q, k, v = widen(q), widen(k), widen(v)
    if form == "dense":
        out = dense_forward(q, k, v, kv, z, packed_lengths(cu_seqlens, q.shape[2]), spec)
        kv, z = dense_state(k, v, kv, z, spec) if return_state else (None, None)
    else:
        out, kv, z = (attend_one if form == "step" else factored_attention)(q, k, v, kv, z, spec)
    return out.to(dtype), kv, z
