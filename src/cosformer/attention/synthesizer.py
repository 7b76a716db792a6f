"""Synthesizer: attention weights that are made without comparing queries with keys."""

import math

import torch
from torch import Tensor, nn

from cosformer.attention.base import Attention, Traits
from cosformer.ops.dense import hide
from cosformer.ops.masked_softmax import masked_softmax

KINDS = ("dense", "random", "factorised_dense", "factorised_random")


class Synthesizer(Attention):
    """``O = softmax(B) V`` with synthesised logits ``B [N, S]`` (Tay et al. 2021); k is not read but for its length.

    ``kind`` says where the logits come from, for each head:
    "dense": row i is ``W2 relu(W1 q_i + b1) + b2``, one logit for each of max_len key positions;
    "random": row i of a learned table ``[max_len, max_len]``;
    "factorised_dense": two such networks of about sqrt(max_len) logits, ``B_ij = a_i[j // |b|] * b_i[j mod |b|]``;
    "factorised_random": ``R1 R2^T`` with learned ``R1, R2 [max_len, rank]``.
    The paper's dense kinds read the layer's input; a mechanism of this library sees its linear image q.
    """

    traits = Traits(paper="Tay et al. 2021", time="N^2 D", memory="N^2", causal=True, cross=True, streaming=False)

    def __init__(
        self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, kind: str = "dense", rank: int | None = None
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
        if rank is not None and kind != "factorised_random":
            raise ValueError(f"rank={rank} is for kind='factorised_random' only, not for {kind!r}")
        if rank is not None and rank < 1:
            raise ValueError(f"rank={rank}; it must be at least 1")
        self.kind = kind
        if kind == "dense":
            self.network = HeadwiseMLP(num_heads, head_dim, max_len)
        elif kind == "random":
            self.table = nn.Parameter(torch.empty(num_heads, max_len, max_len))
        elif kind == "factorised_dense":
            coarse = math.isqrt(max_len - 1) + 1
            self.coarse = HeadwiseMLP(num_heads, head_dim, coarse)
            self.fine = HeadwiseMLP(num_heads, head_dim, -(-max_len // coarse))
        else:
            self.left = nn.Parameter(torch.empty(num_heads, max_len, rank or 8))
            self.right = nn.Parameter(torch.empty(num_heads, max_len, rank or 8))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters(recurse=False):
            for head in parameter:
                nn.init.xavier_uniform_(head)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        n, s = q.shape[2], k.shape[2]
        allowed = torch.ones(n, s, dtype=torch.bool, device=q.device)
        if self.causal:
            allowed = allowed.tril()
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        weights = masked_softmax(self.logits(q, s), allowed)
        return weights.to(v.dtype) @ hide(v, key_mask)

    def logits(self, q: Tensor, s: int) -> Tensor:
        """Logits of q [B,H,N,D] for s key positions: [B or 1, H, N, s]."""
        n = q.shape[2]
        if self.kind == "dense":
            return self.network(q, s)
        if self.kind == "random":
            return self.table[None, :, :n, :s]
        if self.kind == "factorised_dense":
            coarse, fine = self.coarse(q), self.fine(q)
            return (coarse[..., :, None] * fine[..., None, :]).flatten(-2)[..., :s]
        return (self.left[:, :n] @ self.right[:, :s].mT)[None]


class HeadwiseMLP(nn.Module):
    """``W2 relu(W1 x + b1) + b2`` with weights of its own for each head: [B,H,N,D] -> [B,H,N,outputs]."""

    def __init__(self, num_heads: int, head_dim: int, outputs: int) -> None:
        super().__init__()
        self.weight1 = nn.Parameter(torch.empty(num_heads, head_dim, head_dim))
        self.bias1 = nn.Parameter(torch.empty(num_heads, 1, head_dim))
        self.weight2 = nn.Parameter(torch.empty(num_heads, head_dim, outputs))
        self.bias2 = nn.Parameter(torch.empty(num_heads, 1, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for bias in (self.bias1, self.bias2):
            nn.init.zeros_(bias)
        for weight in (self.weight1, self.weight2):
            for head in weight:
                nn.init.xavier_uniform_(head)

    def forward(self, x: Tensor, outputs: int | None = None) -> Tensor:
        """``outputs``: only that many leading ones."""
        hidden = (x @ self.weight1.to(x.dtype) + self.bias1.to(x.dtype)).relu()
        return hidden @ self.weight2[..., :outputs].to(x.dtype) + self.bias2[..., :outputs].to(x.dtype)
