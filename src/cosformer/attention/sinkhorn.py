"""Sparse Sinkhorn attention: each block of queries attends to its own block and to one that a learned sorter brings."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.base import Attention, Traits, at_least_one
from cosformer.ops.dense import hide
from cosformer.ops.masked_softmax import masked_softmax


class Sinkhorn(Attention):
    """One softmax over the own block and the sorted block, ``K~_u = sum_v R_uv K_v`` and V~ likewise (Tay et al. 2020).

    The sorter is linear: the sum of a block's keys times a learned matrix gives its row of logits over the blocks;
    after ``iterations`` of Sinkhorn normalisation of logits / ``temperature`` the matrix R is doubly stochastic (rows
    exactly). ``gumbel`` adds Gumbel noise to the logits in training, as the paper does.

    Causal: a block's row reads the keys up to the block's first token and brings earlier blocks only, and the columns
    are normalised over the rows so far, so that nothing depends on later tokens. The first block has its own keys only.
    Masked keys: a block without a key takes no part in the sorting. Where a sorted slot mixes masked keys with others,
    it is the mean of the others and counts as much as their share in R.
    """

    traits = Traits(
        paper="Tay et al. 2020",
        time="N block D + N^2 D / block",
        memory="N block + (N / block)^2",
        causal=True,
        cross=False,
        streaming=False,
    )

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        block: int = 64,
        iterations: int = 8,
        temperature: float = 0.75,
        gumbel: bool = False,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        at_least_one(block=block, iterations=iterations)
        if not temperature > 0:
            raise ValueError(f"temperature={temperature}; it must be positive")
        self.block, self.iterations, self.temperature, self.gumbel = block, iterations, temperature, gumbel
        self.sorter = nn.Parameter(torch.empty(num_heads, head_dim, -(-max_len // block)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for head in self.sorter:
            nn.init.xavier_uniform_(head)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q, k [B,H,N,D], v [B,H,N,E], key_mask bool [B,N] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        batch, _, n, _ = q.shape
        live = q.new_ones(batch, n, dtype=torch.bool) if key_mask is None else key_mask
        k, v = hide(k, key_mask), hide(v, key_mask)
        missing = -n % self.block
        q, k, v = (F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, self.block)) for x in (q, k, v))  # [B,H,U,block,.]
        live = F.pad(live, (0, missing)).view(batch, 1, -1, self.block)  # [B,1,U,block]

        order = self.order(k, live.any(-1))  # [B,H,U,U]
        share = torch.einsum("bhuv,bxvs->bhus", order, live.to(order.dtype))  # of R on unmasked keys, [B,H,U,block]
        some = share > torch.finfo(share.dtype).tiny
        scale = torch.where(some, share, 1)
        sorted_k, sorted_v = ((order.to(x.dtype) @ x.flatten(3)).view_as(x) for x in (k, v))
        sorted_k, sorted_v = (x / scale[..., None].to(x.dtype) for x in (sorted_k, sorted_v))

        bias = torch.cat((torch.zeros_like(scale), scale.log()), dim=-1)[..., None, :]
        allowed = torch.cat((live.expand_as(some), some), dim=-1)[..., None, :]
        if self.causal:
            own = torch.ones(self.block, self.block, dtype=torch.bool, device=q.device).tril()
            allowed = allowed & F.pad(own, (0, self.block), value=True)
        scores = q @ torch.cat((k, sorted_k), dim=3).mT * self.head_dim**-0.5
        weights = masked_softmax(scores.to(bias.dtype) + bias, allowed)
        out = weights.to(v.dtype) @ torch.cat((v, sorted_v), dim=3)
        return out.flatten(2, 3)[:, :, :n]

    def order(self, k: Tensor, live: Tensor) -> Tensor:
        """The sorting matrix R [B,H,U,U] for blocks of keys k [B,H,U,block,D]; ``live [B,1,U]``: blocks with a key."""
        summary = k.sum(3)
        allowed = live[..., :, None] & live[..., None, :]
        if self.causal:
            summary = summary.cumsum(2) - summary + k[:, :, :, 0]
            allowed = allowed.tril(-1)
        logits = summary @ self.sorter[..., : k.shape[2]].to(k.dtype)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.gumbel and self.training:
            logits = logits - torch.empty_like(logits).exponential_().log()
        return sinkhorn(logits / self.temperature, allowed, self.iterations, self.causal)


def sinkhorn(logits: Tensor, allowed: Tensor, iterations: int, causal: bool) -> Tensor:
    """Divide by column sums and row sums in turn, rows last: [..., U, U] with zeros where not ``allowed``.

    ``causal``: the column sums run over the rows so far, so that row u depends on the rows up to u alone.
    """
    low = -1e9  # finite: rows and columns without an entry must not turn into NaN
    logits = logits.masked_fill(~allowed, low)
    for _ in range(iterations):
        columns = logits.logcumsumexp(-2) if causal else logits.logsumexp(-2, keepdim=True)
        logits = (logits - columns).masked_fill(~allowed, low)
        logits = (logits - logits.logsumexp(-1, keepdim=True)).masked_fill(~allowed, low)
    return logits.exp() * allowed
