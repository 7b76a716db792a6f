"""A decoding step repeated: one more token behind a state, with as little Python around the native kernel as possible.

The kernel takes some ten microseconds for 8 heads of 64 channels, and the operator's checks and choices several times that.
Most of them depend on shapes and settings alone: :func:`remember` keeps those of a step that has passed them, and
:func:`repeat` takes further steps of the same kind, checking only what can differ between two such calls.
"""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops import backends
from cosformer.ops.native.steps import Steps
from cosformer.ops.state import LinearState
from cosformer.ops.watchers import in_a_mode

_MOST_KINDS = 64
_known: dict[tuple[Any, ...], Steps] = {}
_UNKNOWN: tuple[Steps | None, int, int] = (None, 0, 0)


def remember(q: Tensor, k: Tensor, v: Tensor, state: LinearState, max_len: int, eps: float) -> None:
    """Keep the kind of a checked one-token step, if it is one for the native kernels."""
    if q.shape[2] != 1 or not Steps.fit(q, v) or backends.why_not("native", q, k, v):
        return
    if len(_known) >= _MOST_KINDS:
        _known.clear()
    _known[_kind(q, k, v, max_len, eps)] = Steps(q, k, v, state.kv, state.z, max_len, eps)


def repeat(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, max_len: int | None, eps: float
) -> tuple[Tensor, LinearState] | None:
    """One token, ``(out, state)``; None where this is no step of a known kind, or something watches it."""
    if type(state) is not LinearState or type(eps) is not float:
        return None
    if _unfit(q) or _unfit(k) or _unfit(v):
        return None
    known = state.__dict__  # its fields, without the detour by way of attributes
    kv, z = known["kv"], known["z"]
    steps, kv_at, z_at = known.get("_made", _UNKNOWN)
    if steps is not None and kv.data_ptr() == kv_at and z.data_ptr() == z_at:
        # a step made these sums, and nobody has put others in their place since: they need no second look
        if (kv.requires_grad or z.requires_grad) and torch.is_grad_enabled():
            return None
    else:
        steps = _known.get(_kind(q, k, v, max_len, eps))
        if steps is None or _unfit(kv) or _unfit(z) or not steps.go_on_from(kv, z):
            return None
        kv_at, z_at = kv.data_ptr(), z.data_ptr()
    if not steps.take(q, k, v, max_len, eps) or known["max_len"] != max_len:
        return None
    if torch.is_autocast_enabled("cpu") or in_a_mode():
        return None
    first = state.seen
    if first >= steps.max_len:
        return None  # the operator says that the state is full
    out, kv, z, kv_at, z_at = steps(q, k, v, kv, z, kv_at, z_at, first)
    return out, LinearState.after_step(kv, z, first + 1, steps.max_len, (steps, kv_at, z_at))


def _unfit(x: Tensor) -> bool:
    """Whether a tensor is none that the kernels can read as it lies, or waits for a gradient."""
    return (
        type(x) is not Tensor or not x.is_cpu or not x.is_contiguous() or (x.requires_grad and torch.is_grad_enabled())
    )


def _kind(q: Tensor, k: Tensor, v: Tensor, max_len: int | None, eps: float) -> tuple[Any, ...]:
    return q.shape, k.shape, v.shape, q.dtype, max_len, eps
