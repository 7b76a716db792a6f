"""The definition, as an N x S matrix: what every other form is tested against, and the fastest one for short input."""

from itertools import pairwise

import torch
from torch import Tensor

from cosformer.ops.angles import angle_tables, pair_weight
from cosformer.ops.decay import by_feature, exponents, fade
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import AttentionSpec, Call


def dense_attention(call: Call) -> Tensor:
    """``out [B,H,N,E]``; plain differentiable operations, in the inputs' dtype. Masks and packing are the caller's."""
    q, k, v, kv, z, _, _, decay, p = call
    scores = dense_scores(q, k, p, decay)
    num = _product(scores, v)
    den = scores.sum(-1, keepdim=True)
    if kv is not None and z is not None:
        fq = features(q, p.q_first, p.q_len, p.relu)
        if decay is not None:  # the state stands at the position before the first key
            distance = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device) + 1
            fq = fq * _faded(decay, distance, fq)
        fq = stack_heads(fq, k.shape[1])
        num = num + fq @ kv
        den = den + fq @ z[..., None]
    if p.normaliser != "none":
        divisor = NORMALISERS[p.normaliser].divisor(den, p.eps)
        num = num / divisor if num.requires_grad else num.div_(divisor)
    return unstack_heads(num, q.shape[1])


def dense_forward(call: Call, lengths: list[int] | None) -> Tensor:
    """``out`` of :func:`dense_attention`, or of each packed sequence in turn."""
    if lengths is None:
        return dense_attention(call)
    sequences = zip(*(x.split(lengths, dim=2) for x in call[:3]), strict=True)
    return torch.cat([dense_attention(call._replace(q=q, k=k, v=v)) for q, k, v in sequences], dim=2)


def packed_lengths(cu_seqlens: Tensor | None, n: int) -> list[int] | None:
    """The lengths of the packed sequences of ``n`` tokens; None: they are not packed.

    Asked outside of transforms: inside a nested one, torch before 2.10 gives tensors that have no values.
    """
    if cu_seqlens is None:
        return None
    # values of meta tensors are not known, and one sequence has the same shapes
    bounds = [0, n] if cu_seqlens.is_meta else cu_seqlens.tolist()
    return [b - a for a, b in pairwise(bounds)]


def dense_scores(q: Tensor, k: Tensor, p: AttentionSpec, decay: Tensor | None = None) -> Tensor:
    """Weights before normalisation, ``[B, Hk, G*N, S]`` with G = H/Hk query heads to a key head; 0: not seen."""
    if p.relu:
        q, k = q.relu(), k.relu()
    scores = _product(stack_heads(q, k.shape[1]), k.mT) if decay is None else _decayed_scores(q, k, decay, p.causal)
    n, s = q.shape[-2], k.shape[-2]
    weight = pair_weight(
        n,
        s,
        causal=p.causal,
        q_first=p.q_first,
        k_first=p.k_first,
        q_len=p.q_len,
        k_len=p.k_len,
        dtype=q.dtype,
        device=q.device,
    )
    if weight is None:
        return scores
    # in place: the product keeps its factors for the backward pass, not its result
    if q.shape[1] == k.shape[1]:
        return scores.mul_(weight)
    scores.unflatten(-2, (q.shape[1] // k.shape[1], n)).mul_(weight)
    return scores


def dense_state(call: Call) -> tuple[Tensor, Tensor]:
    """The state after these keys: ``kv + Phi(k)^T v`` and ``z + Phi(k)^T 1``."""
    _, k, v, kv, z, _, _, decay, p = call
    fk, s = features(k, p.k_first, p.k_len, p.relu), k.shape[2]
    if decay is not None:
        fk = fk * _faded(decay, torch.arange(s - 1, -1, -1, device=k.device), fk)
        if kv is not None and z is not None:
            rates = by_feature(decay, fk.shape[-1])
            kv, z = fade(kv, rates[..., None], s), fade(z, rates, s)
    kv_new, z_new = fk.mT @ v, fk.sum(-2)
    return (kv_new, z_new) if kv is None or z is None else (kv + kv_new, z + z_new)


def _decayed_scores(q: Tensor, k: Tensor, decay: Tensor, causal: bool) -> Tensor:
    """Products of queries and keys, channel by channel times what the distance leaves of each, ``[B, Hk, G*N, S]``.

    Causal, every channel looks left; otherwise the first half does, and the second half looks right.
    """
    (n, d), s = q.shape[2:], k.shape[2]
    distance = torch.arange(s - n, s, device=q.device)[:, None] - torch.arange(s, device=q.device)
    factors = exponents(decay[:, None, None], distance.clamp_min(0)[..., None], q.dtype)  # [Hk,N,S,D]
    if not causal:
        right = exponents(decay[:, None, None], (-distance).clamp_min(0)[..., None], q.dtype)
        left = torch.arange(d, device=q.device) < d // 2
        seen = (distance >= 0)[..., None] & left | (distance <= 0)[..., None] & ~left
        factors = torch.where(left, factors, right) * seen
    grouped = q.unflatten(1, (k.shape[1], -1))[:, :, :, :, None]  # [B,Hk,G,N,1,D]
    scores = (grouped * factors[:, None] * k[:, :, None, None]).sum(-1)
    return scores.flatten(2, 3)


def _faded(decay: Tensor, distance: Tensor, features: Tensor) -> Tensor:
    """What ``distance [N]`` leaves of ``features [B,heads,N,F]``: ``[heads,N,F]``."""
    rates = by_feature(decay, features.shape[-1]).repeat_interleave(features.shape[1] // decay.shape[0], 0)
    return exponents(rates[:, None], distance[:, None], features.dtype)


def hide(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Keys or values ``[B,Hk,S,.]`` with zeros where masked: a key of zeros has left numerator, denominator and state.

    Values too, because zero times what stood there need not be zero: padding may hold anything.
    """
    return x if key_mask is None else x.masked_fill(~key_mask[:, None, :, None], 0)


def features(x: Tensor, first: int | Tensor, length: int, relu: bool) -> Tensor:
    """``Phi(x) [..., N, F]`` of ``x [..., N, D]`` at positions ``first ..``: cos half, then sin half."""
    if relu:
        x = x.relu()
    if not length:
        return x
    cos, sin = angle_tables(first, x.shape[-2], length, x.dtype, x.device)
    return torch.cat([x * cos[:, None], x * sin[:, None]], dim=-1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of ``[B,H,.,.]`` tensors; for short input a batched product of three dimensions is a fifth faster."""
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).view(a.shape[0], a.shape[1], a.shape[2], b.shape[3])


def stack_heads(x: Tensor, key_heads: int) -> Tensor:
    """``[B,H,N,D] -> [B,Hk,G*N,D]``: the G heads that share a key head one below the other, so k is never repeated."""
    return x if x.shape[1] == key_heads else x.unflatten(1, (key_heads, x.shape[1] // key_heads)).flatten(2, 3)


def unstack_heads(x: Tensor, heads: int) -> Tensor:
    """``[B,Hk,G*N,E] -> [B,H,N,E]``, the way back."""
    groups = heads // x.shape[1]
    return x if groups == 1 else x.unflatten(2, (groups, x.shape[2] // groups)).flatten(1, 2)
