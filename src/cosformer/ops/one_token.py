"""One more token behind a state on the CPU, the call that generation repeats: the operator's checks in their cheapest form.

Whatever is not that plain, mistakes included, is left to the operator's usual way.
"""

import torch
from torch import Tensor

from cosformer.ops import native
from cosformer.ops.checks import check_eps
from cosformer.ops.spec import AttentionSpec, Call
from cosformer.ops.state import LinearState
from cosformer.ops.torch_ops import can_bypass_dispatcher


def try_one_token(
    q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, max_len: int | None, decay: Tensor | None, eps: float
) -> tuple[Tensor, LinearState] | None:
    """``(out, state)`` of a causal call with ``return_state``, or None where this is not the way."""
    if (
        torch.compiler.is_compiling()
        or type(state) is not LinearState
        or state.max_len != max_len
        or state.decay is not decay
    ):
        return None
    kv, z = state.kv, state.z
    if not (q.is_cpu and k.is_cpu and v.is_cpu and kv.is_cpu and z.is_cpu):
        return None
    if not can_bypass_dispatcher(q, k, v, kv, z) or torch.is_autocast_enabled("cpu") or not native.available():
        return None
    dtype = q.dtype
    if dtype not in native.DTYPES or k.dtype is not dtype or v.dtype is not dtype:
        return None
    if kv.dtype is not torch.float32 or z.dtype is not torch.float32 or not q.dim() == v.dim() == 4:
        return None
    b, h, n, d = q.shape
    _, hk, _, e = v.shape
    if n != 1 or hk == 0 or h % hk or k.shape != (b, hk, 1, d) or v.shape != (b, hk, 1, e):
        return None
    if kv.shape != (b, hk, 2 * d, e) or z.shape != (b, hk, 2 * d) or d == 0 or e == 0:
        return None
    first = int(state.position)
    if first >= state.max_len:
        return None
    length = state.max_len
    spec = AttentionSpec(True, True, first, first, length, length, "clamp", check_eps(eps, dtype))
    out, kv, z = native.step(Call(q, k, v, kv, z, None, None, decay, spec))
    return out, LinearState(kv, z, state.position + 1, length, decay)
