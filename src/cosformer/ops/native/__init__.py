"""The native CPU kernels: the contract of ``plain``, in C, bound with ctypes.

``why_not(...)`` says whether a call can be taken; ``forward``, ``backward`` and ``step`` assume that it can, and that
the operator has checked shapes and values. float32 and bfloat16 on the CPU; sums, denominators and states are float32.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cosformer.ops import two_sided
from cosformer.ops.native import memory
from cosformer.ops.native.library import CALL, DTYPES, NORMALISERS, find, loaded
from cosformer.ops.spec import AttentionSpec, Call

__all__ = ["DTYPES", "available", "backward", "dense", "describe", "fits_dense", "forward", "step", "why_not"]

_SHORT = 96  # longest N and S of `dense`
_TOO_FAST = 2  # what its entry returns for rates that decay too fast for so many rows
# what the kernels write sums to, whatever the process has set as its defaults
_SUMS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


def available() -> bool:
    """Whether the library was built and runs here."""
    return find()[0] is not None


def describe() -> str:
    """Instruction set, compiler and threads in use, or why there is no library."""
    library, reason = find()
    return reason if library is None else library.describe()


def _missing() -> str:
    """Why there is no library; an empty string: there is. A compiler need not trace how it is found."""
    return find()[1]


# the mark that torch.compiler.assume_constant_result sets; the decorator itself loads dynamo and sympy, seconds of
# every import
_missing._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def why_not(*tensors: Tensor) -> str:
    """Why these q, k, v cannot be taken here (an empty string: they can)."""
    if reason := _missing():
        return reason
    for x in tensors:
        if x.device.type != "cpu":
            return f"the native kernels run on the CPU, not on {x.device}"
        if x.dtype not in DTYPES:
            return f"the native kernels take float32 and bfloat16, not {x.dtype}"
        if x.dtype != tensors[0].dtype:
            return f"the native kernels take q, k and v of one dtype, not {tensors[0].dtype} and {x.dtype}"
    return ""


def forward(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``out [B,H,N,E]``, row sums ``den [B,H,N]``, and the state ``kv [B,Hk,F,E]``, ``z [B,Hk,F]`` after the keys.

    Packed sequences leave a state of zeros, and so do decays without causality.
    """
    (b, h, n, _), e = call.q.shape, call.v.shape[3]
    out = memory.empty((b, h, n, e), call.v.dtype)
    if call.looks_both_ways:
        den = _forward_both(call, out)
        kv_next, z_next = (torch.zeros(shape, **_SUMS) for shape in _state_shapes(call))
        return out, den, kv_next, z_next
    return out, *_forward(call, out)


def _forward(
    call: Call, out: Tensor, sums: Tensor | None = None, sums_den: Tensor | None = None, *, reverse: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """``out`` is filled; the row sums and the state. ``sums``, ``sums_den``: those of a first call, to be added."""
    q, k, v, kv, z, key_mask, cu_seqlens, decay, p = call
    library = loaded()
    q, k, v, kv, z = _rows(q), _rows(k), _rows(v), _plain(kv), _plain(z)
    decay = _plain(decay)
    key_mask = None if key_mask is None else key_mask.contiguous()
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.to("cpu", torch.int64).contiguous()
    den = torch.empty(q.shape[:3], **_SUMS)
    make = torch.empty if cu_seqlens is None else torch.zeros
    kv_next, z_next = (make(shape, **_SUMS) for shape in _state_shapes(call))
    tensors = (q, k, v, kv, z, key_mask, cu_seqlens, decay, out, den, kv_next, z_next, p)
    check_status(library.forward(_call(*tensors, sums=sums, sums_den=sums_den, reverse=reverse)))
    return den, kv_next, z_next


def _forward_both(call: Call, out: Tensor) -> Tensor:
    """``out`` is filled; the row sums. The second of two sweeps adds the sums of the first, and divides."""
    left, right = two_sided.sweeps(call._replace(v=_rows(call.v)))
    sums = out if out.dtype == torch.float32 else memory.empty(out.shape, torch.float32)
    den, *_ = _forward(left._replace(spec=left.spec._replace(normaliser="none")), sums)
    return _forward(right, out, sums, den.flip(2), reverse=True)[0].flip(2)


def _state_shapes(call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    b, hk, _, d = call.k.shape
    features = d * (2 if call.spec.k_len else 1)
    return (b, hk, features, call.v.shape[3]), (b, hk, features)


def backward(
    call: Call,
    g_out: Tensor,
    g_kv: Tensor | None,
    g_z: Tensor | None,
    out: Tensor,
    den: Tensor,
    kv_next: Tensor | None,
    z_next: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the incoming state (of its shape also where none came in).

    ``kv_next`` and ``z_next`` save time without causality; with None they are computed again. In float32, ``out`` and
    ``den`` may also be those of several causal calls that share one division; in bfloat16 ``out`` is not read, being
    rounded.
    """
    dq, dk, dv = (memory.empty_like(x) for x in call[:3])
    results = [
        x if x.stride(3) == 1 or not x.numel() else torch.empty(x.shape, dtype=x.dtype, device="cpu")
        for x in (dq, dk, dv)
    ]
    if call.looks_both_ways:
        _backward_both(call, g_out, out, den, results)
        dkv, dz = (torch.zeros(shape, **_SUMS) for shape in _state_shapes(call))
    else:
        _, dkv, dz = _backward(call, g_out, out, den, results, g_state=(g_kv, g_z), state_next=(kv_next, z_next))
    for wanted, got in zip((dq, dk, dv), results, strict=True):
        if wanted is not got:
            wanted.copy_(got)
    return dq, dk, dv, dkv, dz


_NO_STATE = (None, None)


def _backward(
    call: Call,
    g_out: Tensor,
    out: Tensor,
    den: Tensor,
    results: Sequence[Tensor],
    *,
    g_state: tuple[Tensor | None, Tensor | None] = _NO_STATE,
    state_next: tuple[Tensor | None, Tensor | None] = _NO_STATE,
    sums: Tensor | None = None,
    g_den: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """``results``, of q, k and v, are filled; the gradients of the row sums and of the incoming state.

    ``sums``, ``g_den``: the dv of a first call, to be added, and its gradients of the row sums.
    """
    q, k, v, kv, z, key_mask, cu_seqlens, decay, p = call
    library = loaded()
    dkv, dz = (torch.empty(shape, **_SUMS) for shape in _state_shapes(call))
    if cu_seqlens is not None:
        state_next = _NO_STATE
        dkv.zero_()
        dz.zero_()
        cu_seqlens = cu_seqlens.to("cpu", torch.int64).contiguous()
    q, k, v, g_out = _rows(q), _rows(k), _rows(v), _rows(g_out)
    kv, z, g_kv, g_z, kv_next, z_next, decay = map(_plain, (kv, z, *g_state, *state_next, decay))
    key_mask = None if key_mask is None else key_mask.contiguous()
    out, den = out.contiguous(), den.contiguous()
    g_den = torch.empty_like(den) if g_den is None else g_den
    more = _gradients(g_out, g_kv, g_z, results, dkv, dz, g_den)
    tensors = (q, k, v, kv, z, key_mask, cu_seqlens, decay, out, den, kv_next, z_next, p)
    check_status(library.backward(_call(*tensors, more, sums=sums, reverse=reverse, out_dtype=results[2].dtype)))
    return g_den, dkv, dz


def _backward_both(call: Call, g_out: Tensor, out: Tensor, den: Tensor, results: Sequence[Tensor]) -> None:
    if out.dtype != torch.float32:  # a rounded output would put its error into every gradient
        out = memory.empty(out.shape, torch.float32)
        _forward_both(call, out)
    call, g_out = call._replace(v=_rows(call.v)), _rows(g_out)  # both sweeps read them
    (dq, dk, dv), half = results, call.q.shape[3] // 2
    sums = dv if dv.dtype == torch.float32 else memory.empty(dv.shape, torch.float32)
    left, right = two_sided.sweeps(call)
    g_den, *_ = _backward(left, g_out, out, den, (dq[..., :half], dk[..., :half], sums))
    rest = (dq[..., half:], dk[..., half:], dv)
    _backward(right, g_out, out, den.flip(2), rest, sums=sums, g_den=g_den.flip(2), reverse=True)


def fits_dense(call: Call) -> bool:
    """Whether :func:`dense` takes this call, which wants no state back."""
    n, s = call.q.shape[2], call.k.shape[2]
    alone = call.kv is None and call.cu_seqlens is None and (call.decay is None or call.spec.causal)
    return alone and max(n, s) <= _SHORT and min(n, s) > 0 and not (call.spec.causal and n != s)


def dense(call: Call) -> Tensor:
    """``out [B,H,N,E]`` of what :func:`fits_dense`: the N x S matrix, a head at a time."""
    q, k, v, _, _, key_mask, _, decay, p = call
    q, k, v, decay = _rows(q), _rows(k), _rows(v), _plain(decay)
    out = torch.empty((*q.shape[:3], v.shape[3]), dtype=v.dtype, device="cpu")
    key_mask = None if key_mask is None else key_mask.contiguous()
    status = loaded().dense(_call(q, k, v, None, None, key_mask, None, decay, out, None, None, None, p))
    if status == _TOO_FAST:
        return forward(call)[0]
    check_status(status)
    return out


def step(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """One token: ``q [B,H,1,D]``, ``k [B,Hk,1,D]``, ``v [B,Hk,1,E]`` -> ``out [B,H,1,E]`` and the new state."""
    q, k, v, kv, z, key_mask, _, decay, p = call
    library = loaded()
    b, h, _, d = q.shape
    hk, e = v.shape[1], v.shape[3]
    features = d * (2 if p.k_len else 1)
    q, k, v, kv, z = _rows(q), _rows(k), _rows(v), _plain(kv), _plain(z)
    decay = _plain(decay)
    out = v.new_empty((b, h, 1, e))
    if kv is None or z is None:
        kv_next, z_next = torch.empty((b, hk, features, e), **_SUMS), torch.empty((b, hk, features), **_SUMS)
    else:
        kv_next, z_next = memory.empty_state_like(kv), torch.empty_like(z)
    key_mask = None if key_mask is None else key_mask.contiguous()
    check_status(library.step(_call(q, k, v, kv, z, key_mask, None, decay, out, None, kv_next, z_next, p)))
    return out, kv_next, z_next


def check_status(status: int) -> None:
    """Raise for what an entry of the library returned, unless it is 0."""
    if status:
        raise MemoryError("the native kernels could not allocate their scratch memory")


def _rows(x: Tensor) -> Tensor:
    """The tensor with its last dimension contiguous: a view where it can be, else a copy."""
    if x.is_neg():  # the view of an imaginary part: memory holds the other sign
        x = x.resolve_neg()
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def _plain(x: Tensor | None) -> Tensor | None:
    if x is None or (x.dtype == torch.float32 and x.is_contiguous() and not x.is_neg()):
        return x
    return x.to(torch.float32).contiguous().resolve_neg()


def _at(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _gradients(
    g_out: Tensor,
    g_kv: Tensor | None,
    g_z: Tensor | None,
    results: Sequence[Tensor],
    dkv: Tensor,
    dz: Tensor,
    g_den: Tensor,
) -> tuple[int, ...]:
    """The part of the call record that only backward reads."""
    strides = [s for x in results for s in x.stride()[:3]]
    pointers = [x.data_ptr() for x in results]
    return (_at(g_out), *g_out.stride()[:3], _at(g_kv), _at(g_z), *pointers, *strides, _at(dkv), _at(dz), _at(g_den))


_NO_GRADIENTS = (0,) * 21


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    z: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    decay: Tensor | None,
    out: Tensor,
    den: Tensor | None,
    kv_next: Tensor | None,
    z_next: Tensor | None,
    p: AttentionSpec,
    gradients: tuple[int, ...] = _NO_GRADIENTS,
    *,
    sums: Tensor | None = None,
    sums_den: Tensor | None = None,
    reverse: bool = False,
    out_dtype: torch.dtype | None = None,
) -> bytes:
    """The call record of cosformer.h; ``out_dtype``: if not that of ``out``, which then is not read."""
    assert decay is None or p.causal
    b, h, n, d = q.shape
    _, hk, s, e = v.shape
    qs, ks, vs = q.stride(), k.stride(), v.stride()
    # fmt: off
    return CALL.pack(
        b, h, hk, n, s, d, e, DTYPES[v.dtype], p.relu, p.causal, NORMALISERS[p.normaliser], p.q_len, p.k_len, p.eps,
        *qs[:3], *ks[:3], *vs[:3], *out.stride()[:3], *((0, 0, 0) if sums is None else sums.stride()[:3]),
        1 if cu_seqlens is None else cu_seqlens.numel() - 1, torch.get_num_threads(), DTYPES[out_dtype or out.dtype],
        reverse, p.q_first, p.k_first, q.data_ptr(), k.data_ptr(), v.data_ptr(), _at(kv), _at(z), _at(key_mask),
        _at(cu_seqlens), _at(decay), _at(sums), _at(sums_den), out.data_ptr(), _at(den), _at(kv_next), _at(z_next),
        *gradients,
    )
    # fmt: on
