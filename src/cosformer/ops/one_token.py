"""One more token after a state on the CPU, the call that generation repeats: every check and conversion in its cheapest
form.

Whatever is not that plain, mistakes included, is left to the operator's usual way.
"""

import torch
from torch import Tensor, empty_like

from cosformer.ops.native import check_status
from cosformer.ops.native.library import DTYPES, TOKEN, TOKEN_STATE_IS_FULL, find
from cosformer.ops.native.memory import empty_state_like
from cosformer.ops.state import LinearState
from cosformer.ops.torch_ops import every_call_is_observed

_SMALLEST_EPS = torch.finfo(torch.float32).tiny  # below it the operator puts this number in its place


def try_one_token(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState, max_len: int | None, decay: Tensor | None, eps: float
) -> tuple[Tensor, LinearState] | None:
    """``(out, state)`` of a causal call with ``return_state``, or None where this is not the way."""
    if (
        every_call_is_observed()
        or type(state) is not LinearState
        or state.max_len != max_len
        or state.decay is not decay
        or torch._C._is_any_autocast_enabled()
        or not eps >= _SMALLEST_EPS
        or (library := find()[0]) is None
    ):
        return None
    kv, z, position = state.kv, state.z, state.position
    gradients = torch.is_grad_enabled()
    for x in (q, k, v, kv, z) if decay is None else (q, k, v, kv, z, decay):
        if type(x) is not Tensor or not x.is_cpu or x.is_neg() or (gradients and x.requires_grad):
            return None
    dtype = q.dtype
    if dtype not in DTYPES or k.dtype is not dtype or v.dtype is not dtype:
        return None
    if kv.dtype is not torch.float32 or z.dtype is not torch.float32:
        return None
    if type(position) is not Tensor or not position.is_cpu or position.dtype is not torch.int64 or position.dim():
        return None
    try:
        (b, h, n, d), (values, hk, s, e) = q.shape, v.shape
    except ValueError:  # they have other dimensions
        return None
    if n != 1 or s != 1 or values != b or hk == 0 or h % hk or d == 0 or e == 0 or k.shape != (b, hk, 1, d):
        return None
    if kv.shape != (b, hk, 2 * d, e) or z.shape != (b, hk, 2 * d):
        return None
    if decay is not None and (decay.dtype is not torch.float32 or decay.shape != (hk, d) or not decay.is_contiguous()):
        return None
    q, k, v, kv, z = q.contiguous(), k.contiguous(), v.contiguous(), kv.contiguous(), z.contiguous()
    out = empty_like(q) if d == e else q.new_empty((b, h, 1, e))
    kv_next, z_next, position_next = empty_state_like(kv), empty_like(z), empty_like(position)
    # fmt: off
    status = library.token(TOKEN.pack(
        b, h, hk, d, e, DTYPES[dtype], state.max_len, torch.get_num_threads(), eps, q.data_ptr(), k.data_ptr(),
        v.data_ptr(), kv.data_ptr(), z.data_ptr(), 0 if decay is None else decay.data_ptr(), position.data_ptr(),
        out.data_ptr(), kv_next.data_ptr(), z_next.data_ptr(), position_next.data_ptr(),
    ))
    # fmt: on
    if status == TOKEN_STATE_IS_FULL:
        return None
    check_status(status)
    return out, LinearState(kv_next, z_next, position_next, state.max_len, decay)
