"""Reformer: attention among tokens that hash alike."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention, Traits, at_least_one
from cosformer.attention.slices import head_groups, works_in_slices
from cosformer.ops.dense import hide
from cosformer.ops.grouping import group_blocks, sort_ranks, take_rows
from cosformer.ops.masked_softmax import merge_parts, partial_attention

SELF_SCORE = -5e4  # a token attends to itself only when it has nothing else


class Reformer(Attention):
    """Locality-sensitive hashing attention with shared queries and keys (Kitaev et al. 2020).

    The keys are the queries, scaled to length one: **the k that is passed in is not read**. In each of ``num_hashes``
    rounds a token falls into the bucket argmax([xR; -xR]) of a random R; tokens are sorted by bucket and position and
    cut into chunks; a token attends to those of its bucket in its own chunk and the one before (for the first chunk:
    the last). Rounds are summed by their log-sum-exp; a pair that meets in several rounds counts once, or each time
    with ``allow_duplicates`` (cheaper).

    The number of buckets is fixed when built (default: about max_len / chunk), so length and padding do not change the
    hash. In the causal form the cuts start anew in every bucket: cut through the whole sorted sequence, as the paper
    has it, a later token would push earlier ones over a chunk's edge and so show itself to them.
    R is drawn once from ``seed`` (default 0) and kept in a buffer. There is no gradient through the hash.
    """

    traits = Traits(
        paper="Kitaev et al. 2020",
        time="N log N + hashes N (chunk + buckets) D",
        memory="hashes N chunk + N buckets",
        causal=True,
        cross=False,
        streaming=False,
    )
    rotations: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        num_hashes: int = 2,
        chunk: int = 64,
        num_buckets: int | None = None,
        allow_duplicates: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        at_least_one(num_hashes=num_hashes, chunk=chunk)
        if num_buckets is None:
            num_buckets = 1 if max_len <= chunk else 2 * -(-max_len // (2 * chunk))
        if num_buckets != 1 and (num_buckets < 2 or num_buckets % 2):
            raise ValueError(f"num_buckets={num_buckets}; it must be 1 or even, as R and -R give a bucket each")
        self.num_hashes, self.chunk, self.num_buckets = num_hashes, chunk, num_buckets
        self.allow_duplicates = allow_duplicates
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("rotations", torch.randn(num_hashes, head_dim, num_buckets // 2, generator=generator))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q, k [B,H,N,D], v [B,H,N,E], key_mask bool [B,N] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        bucket = self.hash(q)
        if key_mask is not None:
            q, v = hide(q, key_mask), hide(v, key_mask)
            bucket = bucket.masked_fill(~key_mask[:, None], self.num_buckets)
        if not works_in_slices(q):
            return self.attend(q, v, bucket)
        out = v.new_empty(v.shape)
        for group in head_groups(q):
            out[group] = self.attend(q[group], v[group], bucket[:, *group])
        return out

    @torch.no_grad()
    def hash(self, q: Tensor) -> Tensor:
        """Buckets ``[rounds,B,H,N]`` of q [B,H,N,D]."""
        if self.num_buckets == 1:
            return torch.zeros(self.num_hashes, *q.shape[:3], dtype=torch.long, device=q.device)
        buckets = []
        for rotation in self.rotations:
            rotated = q.to(rotation.dtype) @ rotation
            (largest, right), (smallest, left) = rotated.max(-1), rotated.min(-1)
            buckets.append(torch.where(largest >= -smallest, right, left + self.num_buckets // 2))
        return torch.stack(buckets)

    def attend(self, q: Tensor, v: Tensor, bucket: Tensor) -> Tensor:
        """Attention of q [B,H,N,D] to v [B,H,N,E] for given buckets [rounds,B,H,N]; bucket ``num_buckets``: masked."""
        layouts = [self.layout(b) for b in bucket]
        k = F.normalize(q, dim=-1) * self.head_dim**-0.5
        parts = []
        for layout in layouts:
            scores = take_rows(q, layout.query) @ take_rows(k, layout.key).mT  # [B,H,chunks,chunk,2 chunk]
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            scores.diagonal(dim1=-2, dim2=-1).fill_(SELF_SCORE)
            if len(layouts) > 1 and not self.allow_duplicates:
                others = [other for other in layouts if other is not layout]
                times = torch.stack([other.meet(layout) for other in others]).sum(0, dtype=scores.dtype)
                scores = scores - times.log1p_()
            part = partial_attention(scores, layout.allowed, take_rows(v, layout.key))
            parts.append([take_rows(x.flatten(2, 3), layout.slot) for x in part])
        out = merge_parts(parts)
        return out.masked_fill((bucket[0] == self.num_buckets)[..., None], 0)

    @torch.no_grad()
    def layout(self, bucket: Tensor) -> "Layout":
        """Chunks for the buckets [B,H,N] of one round."""
        n, chunk = bucket.shape[-1], self.chunk
        live = bucket < self.num_buckets
        if self.causal:
            query, slot = group_blocks(bucket, self.num_buckets, chunk)
        else:
            order = bucket.argsort(dim=-1, stable=True)  # masked tokens last
            slot = sort_ranks(order)
            query = F.pad(order, (0, -n % chunk), value=n).unflatten(-1, (-1, chunk))
        before = torch.arange(-1, query.shape[2] - 1, device=bucket.device).repeat(*bucket.shape[:2], 1)
        if not self.causal:
            last = (live.sum(-1) - 1) // chunk
            before[..., 0] = last.masked_fill(last == 0, -1)  # a lone chunk must not be seen twice
        previous = query.gather(2, before.clamp(min=0)[..., None].expand_as(query))
        key = torch.cat((query, previous.masked_fill(before[..., None] < 0, n)), dim=-1)

        # one number for bucket and chunk, so that "do they meet" is two comparisons; the negative ones meet nothing
        own_chunk = slot.clamp(max=query[0, 0].numel() - 1) // chunk
        first = bucket * (query.shape[2] + 1) + 1
        own = F.pad((first + own_chunk).masked_fill(~live, -1), (0, 1), value=-1).int()
        before = F.pad((first + before.gather(-1, own_chunk)).masked_fill(~live, -1), (0, 1), value=-1).int()
        as_key = own.masked_fill(own < 0, -2)

        bucket = F.pad(bucket.masked_fill(~live, -1), (0, 1), value=-1).int()
        allowed = pick(bucket, query)[..., :, None] == pick(bucket.masked_fill(bucket < 0, -2), key)[..., None, :]
        if self.causal:
            # the tokens of a chunk are in their order, and those of the chunk before come before them
            place = torch.arange(2 * chunk, device=key.device)
            allowed = allowed & ((place <= place[:chunk, None]) | (place >= chunk))
        return Layout(query, key, slot, allowed, own, before, as_key)


class Layout(NamedTuple):
    """One round: who sits where."""

    query: Tensor  # [B,H,chunks,chunk], the token in each slot, N: none
    key: Tensor  # [B,H,chunks,2 chunk], the same and those of the chunk before
    slot: Tensor  # [B,H,N], the slot of each token, counted over all chunks
    allowed: Tensor  # bool [B,H,chunks,chunk,2 chunk]
    own: Tensor  # [B,H,N+1], bucket and chunk of each token
    before: Tensor  # [B,H,N+1], its bucket and the chunk before
    as_key: Tensor  # [B,H,N+1], like own

    def meet(self, other: "Layout") -> Tensor:
        """Whether the pairs of the other round meet in this one too: bool [B,H,chunks,chunk,2 chunk]."""
        key = pick(self.as_key, other.key)[..., None, :]
        return (key == pick(self.own, other.query)[..., :, None]) | (
            key == pick(self.before, other.query)[..., :, None]
        )


def pick(x: Tensor, index: Tensor) -> Tensor:
    """``x [B,H,N]``, ``index [B,H,C,m]`` into N -> ``[B,H,C,m]``."""
    return x.gather(2, index.flatten(2)).view_as(index)
