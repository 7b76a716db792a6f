"""One token against the state: the cost of a decoding step, whatever came before."""

import math

import torch
from torch import Tensor

from cosformer.ops.angles import HALF_PI
from cosformer.ops.dense import stack_heads, unstack_heads
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import AttentionSpec


def attend_one(
    q: Tensor, k: Tensor, v: Tensor, kv: Tensor | None, z: Tensor | None, p: AttentionSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """``q [B,H,1,D]``, ``k [B,Hk,1,D]``, ``v [B,Hk,1,E]`` -> ``out [B,H,1,E]`` and the new state; plain operations."""
    if p.relu:
        q, k = q.relu(), k.relu()
    fq, fk = _at_angle(q, p.q_first, p.q_len), _at_angle(k, p.k_first, p.k_len)
    z_new = fk.squeeze(-2) if z is None else z + fk.squeeze(-2)
    kv_new = fk.mT * v if kv is None else torch.addcmul(kv, fk.mT, v)
    fq = stack_heads(fq, k.shape[1])
    out = fq @ kv_new
    if p.normaliser != "none":
        out = out / NORMALISERS[p.normaliser].divisor(fq @ z_new[..., None], p.eps)
    return unstack_heads(out, q.shape[1]), kv_new, z_new


def _at_angle(x: Tensor, position: int | Tensor, length: int) -> Tensor:
    if not length:
        return x
    if isinstance(position, Tensor):
        angle = position.double() * (HALF_PI / length)
        return torch.cat([x * angle.cos().to(x.dtype), x * angle.sin().to(x.dtype)], dim=-1)
    angle = position * (HALF_PI / length)
    return torch.cat([x * math.cos(angle), x * math.sin(angle)], dim=-1)
