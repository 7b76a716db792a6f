"""The way the paper's released module computes its attention: the baseline of a speed comparison, not for use.

Tensors are [length, batch, heads * channels], as in that module between its projections. With causality it forms the
outer product of every key with its value and sums them up along the sequence: memory N * 2D * E per head, twice.
"""

import math

import torch
from torch import Tensor

EPS = 1e-6


def released_attention(q: Tensor, k: Tensor, v: Tensor, *, num_heads: int, causal: bool) -> Tensor:
    """``q [N,B,H*D]``, ``k [S,B,H*D]``, ``v [S,B,H*E]`` -> ``[N,B,H*E]``; a quarter turn spans max(N, S)."""
    n, batch = q.shape[:2]
    longest = max(n, k.shape[0])
    q, k, v = (_by_head(x, num_heads) for x in (q.relu(), k.relu(), v))
    fq, fk = _features(q, longest), _features(k, longest)
    if causal:
        kv = torch.einsum("hld,hle->hlde", fk, v).cumsum(dim=1)
        num = torch.einsum("hld,hlde->hle", fq, kv)
        den = torch.einsum("hld,hld->hl", fq, fk.cumsum(dim=1)).clamp_min(EPS)
        out = num / den.unsqueeze(-1)
    else:
        kv = torch.einsum("hld,hle->hde", fk, v)
        share = 1 / torch.einsum("hld,hd->hl", fq, fk.sum(dim=1)).clamp_min(EPS)
        out = torch.einsum("hld,hde,hl->hle", fq, kv, share)
    return out.transpose(0, 1).contiguous().view(n, batch, -1)


def released_bytes(n: int, heads: int, head_dim: int, causal: bool) -> int:
    """About how much memory a float32 call takes at its peak."""
    features = 6 * n * heads * head_dim * 4
    return features + (2 * n * heads * 2 * head_dim * head_dim * 4 if causal else 0)


def _by_head(x: Tensor, num_heads: int) -> Tensor:
    """``[L,B,H*D] -> [B*H,L,D]``, a view."""
    length, batch, width = x.shape
    return x.contiguous().view(length, batch * num_heads, width // num_heads).transpose(0, 1)


def _features(x: Tensor, longest: int) -> Tensor:
    angle = math.pi / 2 * torch.arange(1, x.shape[1] + 1, dtype=x.dtype).view(1, -1, 1) / longest
    return torch.cat([x * torch.sin(angle), x * torch.cos(angle)], dim=-1)
