"""Inducing points: the attention part of Set Transformer's induced set attention block."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.base import Attention, Traits, at_least_one


class Inducing(Attention):
    """``H = softmax(I K^T / sqrt(D)) V``, ``O = softmax(Q I'^T / sqrt(D)) H`` with learned ``I, I' [R, D]`` per head.

    Lee et al. 2019 wrap both steps in norms, residuals and feed-forwards; here are the two attentions alone, which
    makes the mechanism linear in V. It knows no positions: permuting the keys with their values changes nothing.
    """

    traits = Traits(
        paper="Lee et al. 2019", time="(N + S) R D", memory="(N + S) R", causal=False, cross=True, streaming=False
    )

    def __init__(self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, num_inducing: int = 64) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        at_least_one(num_inducing=num_inducing)
        self.num_inducing = num_inducing
        self.read_points = nn.Parameter(torch.empty(num_heads, num_inducing, head_dim))  # I, queries of the first step
        self.write_points = nn.Parameter(torch.empty(num_heads, num_inducing, head_dim))  # I', keys of the second
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for points in (self.read_points, self.write_points):
            for head in points:
                nn.init.xavier_uniform_(head)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        allowed = None if key_mask is None else key_mask[:, None, None, :]
        batch = q.shape[0]
        read = self.read_points.to(q.dtype).expand(batch, -1, -1, -1)
        write = self.write_points.to(q.dtype).expand(batch, -1, -1, -1)
        summary = F.scaled_dot_product_attention(read, k, v, attn_mask=allowed)
        return F.scaled_dot_product_attention(q, write, summary)
