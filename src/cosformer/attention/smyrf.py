"""SMYRF: attention within equal clusters of queries and keys, sorted by an asymmetric hash."""

import torch
from torch import Tensor

from cosformer.attention.base import Attention, Traits, at_least_one
from cosformer.ops.dense import hide
from cosformer.ops.grouping import group_blocks, sort_ranks, take_rows
from cosformer.ops.masked_softmax import merge_parts, partial_attention


class Smyrf(Attention):
    """Softmax within clusters of ``cluster_size`` keys and as large a part of the queries (Daras et al. 2020).

    Queries and keys are lifted to one sphere, ``[q; 0; sqrt(MQ^2+MK^2-|q|^2)]`` and ``[k; sqrt(MQ^2+MK^2-|k|^2); 0]``
    with MQ, MK the largest norms, so that nearness there is a large q.k; hashed by ``floor((a.x + b) / width)``; sorted
    by hash, then position; and cut into equal clusters. ``num_hashes`` rounds are summed by their log-sum-exp. Logits
    are divided by sqrt(D), so that one cluster is softmax attention.
    a and b are drawn once from ``seed`` (default 0) and kept in buffers. There is no gradient through the hash.
    Masked keys are in no cluster. With as many queries as keys, the queries at masked positions are taken for padding:
    they join the cluster where they would fall, but do not move its bounds.
    """

    traits = Traits(
        paper="Daras et al. 2020",
        time="N log N + hashes N cluster D",
        memory="hashes N cluster",
        causal=False,
        cross=True,
        streaming=False,
    )
    direction: Tensor
    offset: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        num_hashes: int = 4,
        cluster_size: int = 64,
        width: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        at_least_one(num_hashes=num_hashes, cluster_size=cluster_size)
        if not width > 0:
            raise ValueError(f"width={width}; it must be positive")
        self.num_hashes, self.cluster_size, self.width = num_hashes, cluster_size, width
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("direction", torch.randn(head_dim + 2, num_hashes, generator=generator))
        self.register_buffer("offset", torch.rand(num_hashes, generator=generator) * width)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        n, s, size = q.shape[2], k.shape[2], self.cluster_size
        live_q, live_k = (x.new_ones(x.shape[0], x.shape[2], dtype=torch.bool) for x in (q, k))
        if key_mask is not None:
            k, v, live_k = hide(k, key_mask), hide(v, key_mask), key_mask
            live_q = key_mask if n == s else live_q

        most = -(-max(n, s) // size)  # clusters, for the longest sequence of the batch
        longest = torch.maximum(live_q.sum(-1), live_k.sum(-1))
        clusters = ((longest + size - 1) // size).minimum(live_k.sum(-1)).clamp(min=1)  # [B]; none without a key
        even = key_mask is None and s >= most  # then no cluster holds more than `size` queries
        parts = []
        for hash_q, hash_k in zip(*self.hash(q, k, live_q, live_k), strict=True):
            cluster_q = cut(hash_q, live_q, clusters)
            cluster_k = cut(hash_k, live_k, clusters).masked_fill(~live_k[:, None], most)
            query, slot = group_blocks(cluster_q, most, size, num_blocks=most if even else None)
            key, _ = group_blocks(cluster_k, most, size, num_blocks=most)  # one block to a cluster
            of_block = cluster_q.gather(2, query[..., 0].clamp(max=n - 1))
            key = take_rows(key, of_block)  # [B,H,blocks,size]
            scores = take_rows(q, query) @ take_rows(k, key).mT * self.head_dim**-0.5
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            part = partial_attention(scores, (key < s)[..., None, :], take_rows(v, key))
            parts.append([take_rows(x.flatten(2, 3), slot) for x in part])
        return merge_parts(parts)

    @torch.no_grad()
    def hash(self, q: Tensor, k: Tensor, live_q: Tensor, live_k: Tensor) -> tuple[Tensor, Tensor]:
        """Hash values ``[rounds,B,H,N]`` of q and ``[rounds,B,H,S]`` of k; only live tokens set the sphere's radius."""
        q, k = q.to(self.direction.dtype), k.to(self.direction.dtype)
        q2, k2 = q.square().sum(-1), k.square().sum(-1)
        largest_q2 = q2.masked_fill(~live_q[:, None], 0).amax(-1, keepdim=True)
        largest_k2 = k2.masked_fill(~live_k[:, None], 0).amax(-1, keepdim=True)
        channels, height_k, height_q = self.direction.split((self.head_dim, 1, 1))
        project_q = q @ channels + (largest_q2 + largest_k2 - q2).clamp(min=0).sqrt()[..., None] * height_q
        project_k = k @ channels + (largest_q2 + largest_k2 - k2).clamp(min=0).sqrt()[..., None] * height_k
        hash_q, hash_k = (((x + self.offset) / self.width).floor().movedim(-1, 0) for x in (project_q, project_k))
        return hash_q, hash_k


@torch.no_grad()
def cut(value: Tensor, live: Tensor, clusters: Tensor) -> Tensor:
    """Sort the live tokens by ``value [B,H,N]`` and cut them into ``clusters [B]`` parts of equal size: part [B,H,N].

    A token that is not live gets the part that its value falls into.
    """
    total = live.sum(-1)[:, None, None].clamp(min=1)
    live = live[:, None].expand_as(value)
    ordered, order = value.masked_fill(~live, torch.inf).sort(dim=-1, stable=True)
    rank = torch.where(live, sort_ranks(order), torch.searchsorted(ordered, value.contiguous()))
    return rank.minimum(total - 1) * clusters[:, None, None] // total
