"""Clustered attention: queries that hash alike share one row of the attention matrix."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention, Traits, at_least_one
from cosformer.attention.slices import head_groups, works_in_slices
from cosformer.ops.dense import hide
from cosformer.ops.grouping import add_rows, group_blocks, take_rows
from cosformer.ops.masked_softmax import masked_softmax

BLOCK = 32  # queries of one cluster that are multiplied with its top keys at once


class Clustered(Attention):
    """Each of C clusters of queries attends with its mean, then ``topk`` keys are corrected (Vyas et al. 2020).

    Queries are hashed by the signs of ``bits`` random projections and clustered by ``iterations`` rounds of Lloyd's
    algorithm in Hamming space, started from C queries spread evenly over the sequence. The mean query of each cluster
    attends to all keys. With ``topk`` (the paper's improved form) each query divides the weight that its cluster has on
    the cluster's ``topk`` strongest keys by its own softmax over them; ``topk=None`` is the plain form.
    The projections are drawn once from ``seed`` (default 0) and kept in a buffer. There is no gradient through the
    clustering. With as many queries as keys, the queries at masked positions are taken for padding: they get an output,
    but have no part in forming the clusters.
    """

    traits = Traits(
        paper="Vyas et al. 2020",
        time="N C (D + bits) + N topk D",
        memory="N C + N topk",
        causal=False,
        cross=True,
        streaming=False,
    )
    planes: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        num_clusters: int = 100,
        topk: int | None = 32,
        bits: int = 32,
        iterations: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        at_least_one(num_clusters=num_clusters, bits=bits, iterations=iterations)
        if topk is not None and topk < 1:
            raise ValueError(f"topk={topk}; it must be at least 1, or None for the plain form")
        self.num_clusters, self.topk, self.iterations = num_clusters, topk, iterations
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("planes", torch.randn(head_dim, bits, generator=generator))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        if not works_in_slices(q, k):
            return self.attend(q, k, v, key_mask)
        out = v.new_empty(*q.shape[:3], v.shape[-1])
        for group in head_groups(q, k):
            mask = None if key_mask is None else key_mask[group[0]]
            out[group] = self.attend(q[group], k[group], v[group], mask)
        return out

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Any heads of any sequences: each is clustered alone."""
        allowed = q.new_ones(1, 1, 1, 1, dtype=torch.bool) if key_mask is None else key_mask[:, None, None, :]
        shaping = q.new_ones(q.shape[0], q.shape[2], dtype=torch.bool)
        if key_mask is not None and q.shape[2] == k.shape[2]:
            shaping = key_mask
        k, v = hide(k, key_mask), hide(v, key_mask)

        cluster = self.cluster(q, shaping)
        weight = shaping[:, None, :, None].to(q.dtype).expand(-1, q.shape[1], -1, -1)
        count = add_rows(weight, cluster, self.num_clusters)
        mean = add_rows(q.masked_fill(~shaping[:, None, :, None], 0), cluster, self.num_clusters) / count.clamp(min=1)
        weights = masked_softmax(mean @ k.mT * self.head_dim**-0.5, allowed)  # [B,H,C,S]
        if self.topk is None:
            return take_rows(weights.to(v.dtype) @ v, cluster)
        return self.improve(q, k, v, key_mask, cluster, weights)

    def improve(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, cluster: Tensor, weights: Tensor
    ) -> Tensor:
        """The cluster's row, with its mass on its strongest keys divided by each query's own softmax over them."""
        top, key = weights.topk(min(self.topk or 0, k.shape[2]), dim=-1)  # [B,H,C,topk]
        rest = weights.scatter(-1, key, 0).to(v.dtype) @ v
        mass = top.sum(-1, keepdim=True).to(v.dtype)

        token, slot = group_blocks(cluster, self.num_clusters, BLOCK)
        of_block = take_rows(cluster[..., None], token[..., 0]).squeeze(-1)  # [B,H,blocks]
        key = take_rows(key, of_block)  # [B,H,blocks,topk]
        allowed = None
        if key_mask is not None:
            allowed = key_mask[:, None].expand(-1, q.shape[1], -1).gather(2, key.flatten(2)).view_as(key)
            allowed = allowed[..., None, :].flatten(0, 1)
        block_q, block_k, block_v = (take_rows(x, i).flatten(0, 1) for x, i in ((q, token), (k, key), (v, key)))
        exact = F.scaled_dot_product_attention(block_q, block_k, block_v, attn_mask=allowed)
        exact = take_rows(exact.unflatten(0, q.shape[:2]).flatten(2, 3), slot)
        return exact * take_rows(mass, cluster) + take_rows(rest, cluster)

    @torch.no_grad()
    def cluster(self, q: Tensor, shaping: Tensor) -> Tensor:
        """Cluster ``[B,H,N]`` of each query of q [B,H,N,D]; only those in ``shaping [B,N]`` form the clusters."""
        code = torch.where(q.to(self.planes.dtype) @ self.planes > 0, 1.0, -1.0)  # [B,H,N,bits]
        # the shaping queries first, then every C-th part of them
        order = (~shaping).to(torch.uint8).argsort(dim=-1, stable=True)
        start = torch.arange(self.num_clusters, device=q.device) * shaping.sum(-1, keepdim=True) // self.num_clusters
        start = order.gather(-1, start)[:, None].expand(-1, q.shape[1], -1)
        center = take_rows(code, start)  # [B,H,C,bits]
        voting = code * shaping[:, None, :, None]
        for _ in range(self.iterations):
            votes = add_rows(voting, (code @ center.mT).argmax(-1), self.num_clusters)
            center = torch.where(votes == 0, center, votes.sign())
        return (code @ center.mT).argmax(-1)
