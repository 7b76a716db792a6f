"""Learned features for trained models: one affine map per head for queries and keys, followed by a linear attention."""

from typing import Any

import torch
from torch import Tensor, nn

from cosformer.attention import build_attention
from cosformer.attention.base import Attention
from cosformer.ops.checks import without_autocast
from cosformer.ops.spec import accumulator


class LearnedMap(nn.Module):
    """``inner(q A + a, k B + b, v)``, with maps of their own for each head of queries and each head of keys.

    ``inner`` is a feature-map mechanism of the zoo built for ``features`` channels a head. The maps start as
    ``[I, -I, R, -R, ...]`` with random rotations R: a ReLU behind them keeps what it would drop of a single copy, so at
    the start similar queries and keys already have large products. They are scaled as softmax scales its scores.
    """

    def __init__(
        self,
        attention: str,
        *,
        num_heads: int,
        num_key_heads: int,
        head_dim: int,
        features: int,
        max_len: int,
        causal: bool,
        options: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.inner: Attention = build_attention(
            attention, num_heads=num_heads, head_dim=features, max_len=max_len, causal=causal, **(options or {})
        )
        self.head_dim, self.features, self.seed = head_dim, features, seed
        self.query = nn.Parameter(torch.empty(num_heads, head_dim, features))
        self.key = nn.Parameter(torch.empty(num_key_heads, head_dim, features))
        self.query_bias = nn.Parameter(torch.empty(num_heads, 1, features))
        self.key_bias = nn.Parameter(torch.empty(num_key_heads, 1, features))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The start that the class describes, drawn from its seed."""
        start = start_map(self.head_dim, self.features, self.seed)
        for maps, bias in ((self.query, self.query_bias), (self.key, self.key_bias)):
            # all heads alike: the heads of a group share their keys' features, and must agree on what they mean
            maps.copy_(start.expand_as(maps))
            bias.zero_()

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, features={self.features}"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,Hk,S,D], v [B,Hk,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        with without_autocast(q.device):
            fq, fk, fv = self._features(q, k, v)
            return self.inner(fq, fk, fv, key_mask).to(v.dtype)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """The next n tokens after ``state``, whose size does not grow: (out [B,H,n,E], new state)."""
        with without_autocast(q.device):
            fq, fk, fv = self._features(q, k, v)
            out, state = self.inner.extend(fq, fk, fv, state, key_mask)  # pyright: ignore[reportCallIssue]
            return out.to(v.dtype), state

    def _features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In at least float32, because sums of half-precision features lose the precision that training relies on."""
        dtype = accumulator(self.query.dtype)
        query, query_bias, key, key_bias = (x.to(dtype) for x in (self.query, self.query_bias, self.key, self.key_bias))
        fq, fk, fv = q.to(dtype) @ query + query_bias, k.to(dtype) @ key + key_bias, v.to(dtype)
        groups = q.shape[1] // k.shape[1]
        if groups > 1 and not self.inner.grouped:
            fk, fv = fk.repeat_interleave(groups, 1), fv.repeat_interleave(groups, 1)
        return fq, fk, fv


def start_map(head_dim: int, features: int, seed: int) -> Tensor:
    """``[I, -I, R, -R, ...] / head_dim ** 0.25`` ``[head_dim, features]``; R: random rotations from ``seed``."""
    if features % head_dim:
        raise ValueError(f"features={features} must be a multiple of the {head_dim} channels of a head")
    generator = torch.Generator().manual_seed(seed)
    blocks, turn = [], torch.eye(head_dim, device="cpu", dtype=torch.float32)
    while len(blocks) * head_dim < features:
        blocks += [turn, -turn]
        noise = torch.randn(*turn.shape, generator=generator, device="cpu", dtype=torch.float32)
        turn = torch.linalg.qr(noise)[0]
    return torch.cat(blocks, dim=1)[:, :features] * head_dim**-0.25
