"""Linformer: keys and values projected along the sequence to a fixed number of rows."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.base import Attention, Traits, at_least_one
from cosformer.ops.dense import hide

SHARING = ("none", "headwise", "key-value")


class Linformer(Attention):
    """``softmax(Q (E K)^T / sqrt(D)) (F V)`` with learned ``E, F [rank, max_len]`` (Wang et al. 2020).

    ``sharing`` in the paper's words: "none" has one E and one F per head, "headwise" one E and one F for all heads,
    "key-value" one matrix for E and F and all heads. Input of S < max_len keys uses the first S columns.
    """

    traits = Traits(paper="Wang et al. 2020", time="N R D", memory="N R", causal=False, cross=True, streaming=False)

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        rank: int = 256,
        sharing: str = "headwise",
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        at_least_one(rank=rank)
        if sharing not in SHARING:
            raise ValueError(f"unknown sharing {sharing!r}; known: {', '.join(SHARING)}")
        self.rank, self.sharing = rank, sharing
        heads = num_heads if sharing == "none" else 1
        self.project_k = nn.Parameter(torch.empty(heads, rank, max_len))
        self.project_v = self.project_k if sharing == "key-value" else nn.Parameter(torch.empty(heads, rank, max_len))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = (6 / (self.rank + self.max_len)) ** 0.5  # Xavier, head by head
        for weight in {self.project_k, self.project_v}:
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        k, v = self.project(k, self.project_k, key_mask), self.project(v, self.project_v, key_mask)
        return F.scaled_dot_product_attention(q, k, v)

    def project(self, x: Tensor, weight: Tensor, key_mask: Tensor | None) -> Tensor:
        """x [B,H,S,C] -> [B,H,R,C]."""
        # masked before the projection: after it every row mixes all positions
        return weight[..., : x.shape[2]].to(x.dtype) @ hide(x, key_mask)
