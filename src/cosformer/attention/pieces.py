"""A long sequence worked off piece by piece: what lies between input and output stays small and is used again.

Fresh memory costs a page fault every few kilobytes, and past a few tens of megabytes the C library gives freed memory back to
the system after every call. Features, windows and gathered blocks of a whole long sequence then take longer to come by than to
compute, so time grows faster than the length. Pieces also fit into the cache. Gradients need every piece again, so where they
are wanted nothing is gained and the whole sequence goes at once.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from cosformer.ops.state import LinearState

ROWS = 8192  # tokens times heads times sequences in a piece; 4096 to 16384 measured alike
FEWEST = 128  # tokens in a piece, however many heads and sequences there are


def works_in_pieces(*tensors: Tensor) -> bool:
    """Whether to: one of these ``[B,H,N,C]`` has more than a piece, no gradient is recorded, no compiler watches (it wants
    one graph for all lengths)."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return any(x.shape[2] > piece_length(x) for x in tensors)


def piece_length(x: Tensor) -> int:
    """Tokens in a piece of ``x [B,H,N,C]``."""
    return max(FEWEST, ROWS // (x.shape[0] * x.shape[1]))


def pieces(x: Tensor) -> Iterator[slice]:
    """Slices of the third dimension of ``x [B,H,N,C]``, in order."""
    n, length = x.shape[2], piece_length(x)
    for start in range(0, n, length):
        yield slice(start, min(start + length, n))


def head_groups(*tensors: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of batch and heads with about as many rows as a piece, for attentions that need a sequence as a whole."""
    batch, heads = tensors[0].shape[:2]
    size = max(1, ROWS // max(x.shape[2] for x in tensors))
    for item in range(batch):
        for head in range(0, heads, size):
            yield slice(item, item + 1), slice(head, head + size)


class Extend(Protocol):
    """Attention of the next queries to the state and the next keys; ``first``: position of the first of either."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, key_mask: Tensor | None, first: int
    ) -> tuple[Tensor, LinearState]: ...


def attend_in_pieces(
    extend: Extend, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, *, causal: bool
) -> Tensor:
    """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E], for attentions with sums for a state.

    Not causal, all keys come first, with no queries, and then the queries, with no keys.
    """
    out = v.new_empty(*q.shape[:3], v.shape[-1])
    state = None
    for part in pieces(k):
        mask = None if key_mask is None else key_mask[:, part]
        queries = q[:, :, part] if causal else q[:, :, :0]
        rows, state = extend(queries, k[:, :, part], v[:, :, part], state, mask, part.start)
        if causal:
            out[:, :, part] = rows
    if not causal:
        for part in pieces(q):
            out[:, :, part], _ = extend(q[:, :, part], k[:, :, :0], v[:, :, :0], state, None, part.start)
    return out
