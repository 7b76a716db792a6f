"""Linear attention written out pair by pair in float64: what the kernels of every backend are compared with.

Nothing of the library is used here. A weight is computed for each query and key, so memory is O(N S D).
"""

import math

import torch


def _features(x, position, length):
    """Features at their angles: cosine half, then sine half; without a length the features themselves."""
    if not length:
        return x
    angle = position.double() * (math.pi / 2 / length)
    return torch.cat([x * angle.cos()[:, None], x * angle.sin()[:, None]], dim=-1)


def _divisor(den, normaliser, eps):
    if normaliser == "clamp":
        return den.clamp_min(eps)
    if normaliser == "add":
        return den + eps
    if normaliser == "signed":
        return torch.where(den < 0, den.clamp_max(-eps), den.clamp_min(eps))
    return torch.ones_like(den)


def attend_pairs(
    q, k, v, *, causal=False, relu=True, length=0, k_length=0, first=0, key_mask=None, cu_seqlens=None, decay=None,
    state=None, normaliser="clamp", eps=1e-6,
):  # fmt: skip
    """``(out, den, kv, z)`` of queries that are the last N of S new tokens, ``first`` tokens into the sequence.

    ``decay [Hk, D]`` weighs a pair by exp(-decay distance), channel by channel; without ``causal`` the first half of
    the channels sees tokens up to the query's own, the other half those from there on. ``state``: ``(kv, z)`` before
    the first key. ``k_length``: what divides a key's position, if not ``length``.
    """
    k_length = k_length or length
    q, k, v = q.double(), k.double(), v.double()
    groups, n, s = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    q, k = (q.relu(), k.relu()) if relu else (q, k)
    if key_mask is not None:
        k, v = (torch.where(key_mask[:, None, :, None], x, 0) for x in (k, v))
    j = torch.arange(s)
    i = j[s - n :]
    ahead = i[:, None] - j
    seen = ahead >= 0 if causal else torch.ones(n, s, dtype=torch.bool)
    if cu_seqlens is not None:
        sequence = torch.bucketize(j, cu_seqlens.long(), right=True)
        seen = seen & (sequence[i][:, None] == sequence)
    rates = torch.zeros(k.shape[1], q.shape[3], dtype=torch.float64) if decay is None else decay.double()
    factor = torch.exp(-rates[:, None, None] * ahead.abs()[None, :, :, None])
    if decay is not None and not causal:
        half = q.shape[3] // 2
        factor[..., :half] *= (ahead >= 0)[None, :, :, None]
        factor[..., half:] *= (ahead <= 0)[None, :, :, None]
    scores = torch.einsum(
        "bhnd,bhsd,hnsd->bhns", q, k.repeat_interleave(groups, 1), factor.repeat_interleave(groups, 0)
    )
    if length:
        at_query, at_key = ((first + x).double() * (math.pi / 2 / m) for x, m in ((i, length), (j, k_length)))
        scores = scores * torch.cos(at_query[:, None] - at_key)
    scores = torch.where(seen, scores, 0)
    num, den = scores @ v.repeat_interleave(groups, 1), scores.sum(-1)

    rates = torch.cat([rates, rates], dim=-1) if length else rates
    fk = _features(k, first + j, k_length) * torch.exp(-rates[:, None] * (s - 1 - j)[:, None])
    kv, z = fk.mT @ v, fk.sum(-2)
    if state is not None:
        before, z_before = (x.double() for x in state)
        fq = _features(q, first + i, length) * torch.exp(-rates[:, None] * (i + 1)[:, None]).repeat_interleave(
            groups, 0
        )
        num = num + fq @ before.repeat_interleave(groups, 1)
        den = den + (fq * z_before.repeat_interleave(groups, 1)[:, :, None]).sum(-1)
        kept = torch.exp(-rates * s)
        kv, z = kv + kept[..., None] * before, z + kept * z_before
    return num / _divisor(den, normaliser, eps)[..., None], den, kv, z
