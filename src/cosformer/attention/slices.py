"""Processes a long sequence in slices, so that intermediate tensors stay small and their memory is reused.

Fresh memory costs a page fault every few kilobytes, and past a few tens of megabytes the C library returns freed memory
to the system after every call. For a whole long sequence, allocating features, windows and gathered blocks then takes
longer than computing them, so time grows faster than the length. Slices also fit into the cache. Autograd keeps every
slice, so with gradients there is nothing to gain and the whole sequence is processed at once.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from cosformer.ops.state import LinearState

ROWS = 8192  # tokens x heads x sequences in a slice; 4096 to 16384 are equally fast
FEWEST = 128  # minimum tokens in a slice, however many heads and sequences there are


def works_in_slices(*tensors: Tensor) -> bool:
    """Whether to use slices: a tensor ``[B,H,N,C]`` is longer than one, no gradient is recorded, and torch.compile is
    not tracing, which needs one graph for all lengths."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return any(x.shape[2] > slice_length(x) for x in tensors)


def slice_length(x: Tensor) -> int:
    """Tokens in a slice of ``x [B,H,N,C]``."""
    return max(FEWEST, ROWS // (x.shape[0] * x.shape[1]))


def slices(x: Tensor) -> Iterator[slice]:
    """Slices of the third dimension of ``x [B,H,N,C]``, in order."""
    n, length = x.shape[2], slice_length(x)
    for start in range(0, n, length):
        yield slice(start, min(start + length, n))


def head_groups(*tensors: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of batch and heads with about as many rows as a slice, for attentions that need the whole sequence."""
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


def attend_in_slices(
    extend: Extend, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, *, causal: bool
) -> Tensor:
    """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E], for attentions with sums for a state.

    Not causal, all keys come first, with no queries, and then the queries, with no keys.
    """
    out = v.new_empty(*q.shape[:3], v.shape[-1])
    state = None
    for part in slices(k):
        mask = None if key_mask is None else key_mask[:, part]
        queries = q[:, :, part] if causal else q[:, :, :0]
        rows, state = extend(queries, k[:, :, part], v[:, :, part], state, mask, part.start)
        if causal:
            out[:, :, part] = rows
    if not causal:
        for part in slices(q):
            out[:, :, part], _ = extend(q[:, :, part], k[:, :, :0], v[:, :, :0], state, None, part.start)
    return out
