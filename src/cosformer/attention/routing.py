"""Routing Transformer: queries and keys meet at the centroids of an online k-means."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention, Traits
from cosformer.ops.dense import hide
from cosformer.ops.grouping import add_rows, take_rows


class Routing(Attention):
    """Each centroid takes its nearest w queries and w keys; softmax within (Roy et al. 2021).

    q and k pass a layer norm without gain and bias, for the choice and for the attention. A query that several
    centroids take gets the mean of its results, one that none takes (or that sees no key) gets zeros. w is
    ``window``, or by default the number of unmasked tokens over the number of centroids, rounded up; there are
    ``num_clusters`` centroids per head, by default sqrt(max_len).
    The centroids are a buffer, drawn from ``seed`` (default 0). In training each call moves them towards the mean of
    the queries and keys that are nearest to them (moving average with ``decay``, averaged over the processes of a
    distributed run); in eval they stand still. There is no gradient through the choice. The causal form hides later
    keys, but the choice looks at all tokens: see the deviations. With as many queries as keys, the queries at masked
    positions are taken for padding: they get places of their own and take none from the others. All heads route; the
    paper makes half of them local.
    """

    traits = Traits(
        paper="Roy et al. 2021",
        time="N^1.5 D",
        memory="N^1.5",
        causal=True,
        cross=True,
        streaming=False,
        deviations=(
            "causal: a later token can take an earlier one's place at a centroid, so which keys a row sees (never a "
            "later value) depends on later tokens; a row can change by as much as its own size",
        ),
    )
    centroids: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        num_clusters: int | None = None,
        window: int | None = None,
        decay: float = 0.999,
        seed: int = 0,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        num_clusters = round(math.sqrt(max_len)) if num_clusters is None else num_clusters
        if num_clusters < 1 or (window is not None and window < 1):
            raise ValueError(f"num_clusters={num_clusters}, window={window}; both must be at least 1")
        if not 0 <= decay <= 1:
            raise ValueError(f"decay={decay}; it must lie in [0, 1]")
        self.num_clusters, self.window, self.decay = num_clusters, window, decay
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(num_heads, num_clusters, head_dim, generator=generator)
        self.register_buffer("centroids", F.normalize(start, dim=-1))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        q, k = (F.layer_norm(x, (self.head_dim,)) for x in (q, k))
        live_q, live_k = (x.new_ones(x.shape[0], x.shape[2], dtype=torch.bool) for x in (q, k))
        if key_mask is not None:
            k, v, live_k = hide(k, key_mask), hide(v, key_mask), key_mask
            live_q = key_mask if q.shape[2] == k.shape[2] else live_q

        near_q, near_k = self.nearness(q), self.nearness(k)
        key, key_taken = self.choose(near_k, live_k)  # [B,H,C,w]
        query, query_taken = self.choose(near_q, live_q)
        if live_q is key_mask:
            padding, padding_taken = self.choose(near_q, ~live_q)
            query, query_taken = torch.cat((query, padding), -1), torch.cat((query_taken, padding_taken), -1)
        allowed = query_taken[..., :, None] & key_taken[..., None, :]
        if self.causal:
            allowed = allowed & (key[..., None, :] <= query[..., :, None])

        rows = (take_rows(x, i).flatten(0, 1) for x, i in ((q, query), (k, key), (v, key)))
        out = F.scaled_dot_product_attention(*rows, attn_mask=allowed.flatten(0, 1)).unflatten(0, q.shape[:2])
        seeing = allowed.any(-1, keepdim=True).to(out.dtype)
        total = add_rows(torch.cat((out, seeing), -1).flatten(2, 3), query.flatten(2), q.shape[2])
        if self.training:
            self.update(((q, near_q, live_q), (k, near_k, live_k)))
        return total[..., :-1] / total[..., -1:].clamp(min=1)

    @torch.no_grad()
    def nearness(self, x: Tensor) -> Tensor:
        """Dot products [B,H,C,N] of the centroids with x [B,H,N,D]."""
        return self.centroids @ x.to(self.centroids.dtype).mT

    @torch.no_grad()
    def choose(self, near: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
        """The w live tokens nearest to each centroid, ``[B,H,C,w]``; False where there are fewer in this sequence."""
        count = live.sum(-1)[:, None, None, None]
        width = self.window or -(-live.shape[-1] // self.num_clusters)
        near, token = near.masked_fill(~live[:, None, None], -torch.inf).topk(min(width, live.shape[-1]), dim=-1)
        rank = torch.arange(token.shape[-1], device=token.device)
        return token, (near > -torch.inf) & (rank < (self.window or -(-count // self.num_clusters)))

    @torch.no_grad()
    def update(self, tokens: tuple[tuple[Tensor, Tensor, Tensor], ...]) -> None:
        """Move the centroids towards the live ones of ``tokens``: (x [B,H,N,D], nearness [B,H,C,N], live [B,N])."""
        sums = self.centroids.new_zeros(1, *self.centroids.shape[:2], self.head_dim + 1)
        for x, near, live in tokens:
            unit = F.normalize(x.to(sums.dtype), dim=-1)
            unit = torch.cat((unit, torch.ones_like(unit[..., :1])), -1).masked_fill(~live[:, None, :, None], 0)
            sums = sums + add_rows(unit, near.argmax(2), self.num_clusters).sum(0, keepdim=True)
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        total, count = sums[0].split((self.head_dim, 1), dim=-1)
        moved = F.normalize(self.decay * self.centroids + (1 - self.decay) * F.normalize(total, dim=-1), dim=-1)
        self.centroids.copy_(torch.where(count > 0, moved, self.centroids))
