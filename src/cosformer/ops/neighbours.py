"""The tokens next to a rank's shard of a sequence, which other ranks of the group hold."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from cosformer.ops.parallel import SumOverRanks, all_gather_ints


def neighbours(x: Tensor, before: int, after: int, group: Any) -> tuple[Tensor, Tensor, int]:
    """The ``before`` tokens in front of this rank's ``x [B,n,C]``, the ``after`` tokens behind it, and the position of
    its first.

    Zeros stand for tokens past the ends of the whole. One collective forward and one backward, of ``before + after``
    tokens of every rank; shards may have any length, 0 included.
    """
    n, rank = x.shape[1], dist.get_rank(group)
    bounds = (0, *accumulate(length for (length,) in all_gather_ints(group, lambda: (n,), 1, x.device)))
    last, first = F.pad(x, (0, 0, before, 0))[:, n:], F.pad(x, (0, 0, 0, after))[:, :after]
    sent = torch.cat((last, first), 1).transpose(0, 1)
    found = SumOverRanks.apply(sent, None, _taken(bounds, before, after), rank, group).transpose(0, 1)
    return found[:, :before], found[:, before:], bounds[rank]


def _taken(bounds: Sequence[int], before: int, after: int) -> tuple[tuple[int | None, ...], ...]:
    """0 where a token that a rank wants is one that a rank sends, else None; rows and columns by rank and slot."""
    wanted, sent = list[tuple[str, int]](), list[tuple[str, int] | None]()
    for start, end in pairwise(bounds):
        wanted += [("before", place) for place in range(start - before, start)]
        wanted += [("after", place) for place in range(end, end + after)]
        sent += [("before", place) if place >= start else None for place in range(end - before, end)]
        sent += [("after", place) if place < end else None for place in range(start, start + after)]
    return tuple(tuple(0 if want == have else None for have in sent) for want in wanted)
