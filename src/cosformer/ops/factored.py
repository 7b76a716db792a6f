"""The state first, then the rows that read it, in plain operations: the non-causal linear form, and one token.

What compilers, exporters and autograd see, and what decodes where no compiled kernel does.
"""

import math

import torch
from torch import Tensor

from cosformer.ops.angles import HALF_PI
from cosformer.ops.decay import by_feature, fade
from cosformer.ops.dense import dense_state, features, stack_heads, unstack_heads
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import AttentionSpec, Call


def factored_attention(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """``out [B,H,N,E]`` and the state after the keys: ``Phi(q) (Phi(k)^T v)`` over ``Phi(q) (Phi(k)^T 1)``.

    Linear in N and S, and free of loops, so that one graph serves every length.
    """
    p = call.spec
    if call.kv is not None and call.z is not None and call.k.shape[2] == 0:  # cross-attention to a state
        kv, z = call.kv, call.z
    else:
        kv, z = dense_state(call)
    return _read(features(call.q, p.q_first, p.q_len, p.relu), kv, z, p), kv, z


def attend_one(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """``q [B,H,1,D]``, ``k [B,Hk,1,D]``, ``v [B,Hk,1,E]`` -> ``out [B,H,1,E]`` and the new state: a decoding step."""
    q, k, v, kv, z, _, _, decay, p = call
    if p.relu:
        q, k = q.relu(), k.relu()
    fq, fk = _at_angle(q, p.q_first, p.q_len), _at_angle(k, p.k_first, p.k_len)
    if decay is not None and kv is not None and z is not None:
        rates = by_feature(decay, fk.shape[-1])
        kv, z = fade(kv, rates[..., None], 1), fade(z, rates, 1)
    z = fk.squeeze(-2) if z is None else z + fk.squeeze(-2)
    kv = fk.mT * v if kv is None else torch.addcmul(kv, fk.mT, v)
    return _read(fq, kv, z, p), kv, z


def _read(fq: Tensor, kv: Tensor, z: Tensor, p: AttentionSpec) -> Tensor:
    """Rows ``[B,H,N,E]`` of the query features ``fq [B,H,N,F]``."""
    heads, fq = fq.shape[1], stack_heads(fq, kv.shape[1])
    out = fq @ kv
    if p.normaliser != "none":
        out = out / NORMALISERS[p.normaliser].divisor(fq @ z[..., None], p.eps)
    return unstack_heads(out, heads)


def _at_angle(x: Tensor, position: int | Tensor, length: int) -> Tensor:
    """Features of one token: two numbers, where tables of angles would take a dozen operations."""
    if not length:
        return x
    if isinstance(position, Tensor):
        angle = position.double() * (HALF_PI / length)
        return torch.cat([x * angle.cos().to(x.dtype), x * angle.sin().to(x.dtype)], dim=-1)
    angle = position * (HALF_PI / length)
    return torch.cat([x * math.cos(angle), x * math.sin(angle)], dim=-1)
