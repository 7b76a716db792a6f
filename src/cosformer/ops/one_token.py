"""One more token behind a state on the CPU, the call that generation repeats: the operator's checks in their cheapest
form.

Whatever is not that plain, mistakes included, is left to the operator's usual way.
"""

import torch
from torch import Tensor

from cosformer.ops import native
from cosformer.ops.checks import check_eps
from cosformer.ops.state import LinearState
from cosformer.ops.torch_ops import every_call_is_observed


def try_one_token(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, max_len: int | None, decay: Tensor | None, eps: float
) -> tuple[Tensor, LinearState] | None:
    """``(out, state)`` of a causal call with ``return_state``, or None where this is not the way."""
    if (
        every_call_is_observed()
        or type(state) is not LinearState
        or state.max_len != max_len
        or state.decay is not decay
        or torch.is_autocast_enabled("cpu")
        or not native.available()
    ):
        return None
    kv, z, position = state.kv, state.z, state.position
    gradients = torch.is_grad_enabled()
    for x in (q, k, v, kv, z) if decay is None else (q, k, v, kv, z, decay):
        if type(x) is not Tensor or not x.is_cpu or x.is_neg() or (gradients and x.requires_grad):
            return None
    dtype = q.dtype
    if dtype not in native.DTYPES or k.dtype is not dtype or v.dtype is not dtype:
        return None
    if kv.dtype is not torch.float32 or z.dtype is not torch.float32 or not q.dim() == v.dim() == 4:
        return None
    if type(position) is not Tensor or not position.is_cpu or position.dtype is not torch.int64 or position.dim():
        return None
    b, h, n, d = q.shape
    values, hk, s, e = v.shape
    if n != 1 or s != 1 or values != b or hk == 0 or h % hk or d == 0 or e == 0 or k.shape != (b, hk, 1, d):
        return None
    if kv.shape != (b, hk, 2 * d, e) or z.shape != (b, hk, 2 * d):
        return None
    if decay is not None and (decay.dtype is not torch.float32 or decay.shape != (hk, d) or not decay.is_contiguous()):
        return None
    sizes = (b, h, hk, d, e)
    found = native.token(sizes, q, k, v, kv, z, position, decay, state.max_len, check_eps(eps, dtype))
    if found is None:
        return None
    out, kv, z, position = found
    return out, LinearState(kv, z, position, state.max_len, decay)
