"""Sequences as stacks of chunks: the layout, the angle tables and the sums over chunks of the batched form.

A stack holds all chunks of all heads as one batch of matrices, chunks outermost: ``[n*B*Hk, G*C, channels]`` for rows
(queries; the G heads that share a key head lie one below the other) and ``[n*B*Hk, C, channels]`` for keys.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cosformer.ops.spec import FP16_MAX

Array = np.ndarray[Any, Any]
_BLOCK = 65_536  # angle tables start and end at multiples of this, so that calls at neighbouring places share one


class Stack(NamedTuple):
    """The sizes of a stack: ``count`` chunks of ``length`` positions, of which ``positions`` are real."""

    batch: int
    key_heads: int
    groups: int
    count: int
    length: int
    positions: int

    def fold(self, x: Tensor, dtype: torch.dtype, *, relu: bool = False, hidden: Tensor | None = None) -> Tensor:
        """``x [B,heads,N,c]`` as a new stack, ReLU applied, zero where ``hidden [B,1,N,1]`` and past the end."""
        if hidden is not None:
            x = x.masked_fill(hidden, 0)
        x = self._split(pad(x, (0, 0, 0, self._missing)) if self._missing else x)
        stack = x.new_empty(x.shape, dtype=dtype)
        if not relu:
            stack.copy_(x)
        elif x.dtype == dtype:
            torch.clamp_min(x, 0, out=stack)
        else:
            stack.copy_(x).clamp_min_(0)
        return stack.view(-1, x.shape[3] * self.length, x.shape[-1])

    def unfold(self, stack: Tensor, into: Tensor) -> None:
        """Write a stack to ``into [B,heads,N,c]``, rounded to its dtype; beyond float16's range it saturates."""
        if into.dtype == torch.float16:
            stack = stack.clamp(-FP16_MAX, FP16_MAX)
        groups = into.shape[1] // self.key_heads
        stack = stack.view(self.count, self.batch, self.key_heads, groups, self.length, -1)
        if not self._missing:
            self._split(into).copy_(stack)
            return
        whole = stack.permute(1, 2, 3, 0, 4, 5).reshape(*into.shape[:2], self.count * self.length, -1)
        into.copy_(whole[:, :, : self.positions])

    def by_position(self, stack: Tensor) -> Tensor:
        """A view ``[n, B*Hk, G, C, c]``: what tables by position multiply."""
        heads = self.batch * self.key_heads
        return stack.view(self.count, heads, stack.shape[1] // self.length, self.length, stack.shape[2])

    def by_chunk(self, per_chunk: Tensor) -> Tensor:
        """``[n*B*Hk, ...]`` as ``[n, B*Hk, ...]``."""
        return per_chunk.unflatten(0, (self.count, self.batch * self.key_heads))

    @property
    def _missing(self) -> int:
        return self.count * self.length - self.positions

    def _split(self, x: Tensor) -> Tensor:
        """A view ``[n, B, Hk, G, C, c]`` of ``[B, heads, n*C, c]``."""
        x = x.unflatten(2, (self.count, self.length)).unflatten(1, (self.key_heads, -1))
        return x.permute(3, 0, 1, 2, 4, 5)


def stack_of(q: Tensor, k: Tensor, positions: int, length: int) -> Stack:
    """The stack of ``positions`` positions in chunks of ``length``."""
    count = -(-positions // length)
    return Stack(k.shape[0], k.shape[1], q.shape[1] // k.shape[1], count, length, positions)


def rotate(stack: Tensor, table: Tensor | None, at: Stack) -> Tensor:
    """Features at their angles, ``[x cos | x sin]``, of a stack of features x; without a table x itself."""
    if table is None:
        return stack
    x = at.by_position(stack)
    return (x[..., None, :] * table[:, None, None, :, :, None]).view(*stack.shape[:2], -1)


def rotate_back(stack: Tensor, table: Tensor | None, at: Stack) -> Tensor:
    """The transpose of :func:`rotate`: ``y_1 cos + y_2 sin`` of ``[y_1 | y_2]``."""
    if table is None:
        return stack
    first, second = at.by_position(stack).chunk(2, dim=-1)
    cos, sin = table[:, None, None, :, :, None].unbind(-2)
    return (first * cos).addcmul_(second, sin).view(*stack.shape[:2], -1)


def angle_table(first: int, at: Stack, length: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """cos and sin of the positions from ``first`` on, ``[n, C, 2]``, zero past the end; None without angles."""
    if not length:
        return None
    table = angles(first, at.positions, length, dtype, device)
    missing = at.count * at.length - table.shape[0]
    return (pad(table, (0, 0, 0, missing)) if missing else table).view(at.count, at.length, 2)


def angles(first: int, count: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """cos and sin of the angles of ``count`` positions from ``first`` on, ``[count, 2]``."""
    start = first // _BLOCK * _BLOCK
    end = min(-(-(first + count) // _BLOCK) * _BLOCK, length + 1)
    table = _tensor(_angles, (start, end, length, _kind(dtype)), device)
    return table[first - start : first - start + count]


def pair_weights(chunk: int, causal: bool, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What multiplies the scores inside a chunk, ``[C, C]``: the cosine of the distance; causal: zero after the query."""
    return _tensor(_pair_weights, (chunk, causal, length, _kind(dtype)), device)


# Tables are made in float64 on the CPU, because not every device has float64, and kept: on a GPU making one would take longer
# than the attention. Kept as numpy arrays, because a tensor made inside a transform or inference_mode must not outlive it.
@lru_cache(maxsize=16)
def _angles(start: int, end: int, length: int, kind: Any) -> Array:
    angle = np.arange(start, end) * (math.pi / 2 / length)
    # at position = length the product may round above pi/2
    return np.stack([np.cos(angle).clip(min=0), np.sin(angle)], axis=-1).astype(kind)


@lru_cache(maxsize=64)
def _pair_weights(chunk: int, causal: bool, length: int, kind: Any) -> Array:
    position = np.arange(chunk)
    distance = position[:, None] - position
    weight = np.cos(distance * (math.pi / 2 / length)) if length else np.ones((chunk, chunk))
    return (np.tril(weight) if causal else weight).astype(kind)


@lru_cache(maxsize=64)
def _on_device(make: Callable[..., Array], settings: tuple[Any, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.from_numpy(make(*settings)).to(device)


def _tensor(make: Callable[..., Array], settings: tuple[Any, ...], device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.from_numpy(make(*settings))
    return (
        _on_device.__wrapped__(make, settings, device)
        if _get_current_dispatch_mode()
        else _on_device(make, settings, device)
    )


def _kind(dtype: torch.dtype) -> Any:
    return np.float64 if dtype == torch.float64 else np.float32


def running_sums(per_chunk: Tensor, first: Tensor, *, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """``per_chunk [n, B*Hk, ...]`` -> for each chunk ``first`` plus the sum of the chunks before it, and the whole sum.

    ``reverse``: of the chunks after it.
    """
    if reverse:
        per_chunk = per_chunk.flip(0)
    sums = torch.cat([first[None], per_chunk]).cumsum_(0)
    del per_chunk  # as large as the sums, which are about to be copied
    # a copy of the whole sum, which lives on and must not keep the others alive
    return (sums[:-1].flip(0) if reverse else sums[:-1]), sums[-1].clone()


class Packing:
    """Which positions of a stack belong to the same packed sequence, and how sums restart where one ends.

    Only the last sequence of a chunk can go on in the next one, and only the first can come from the one before.
    """

    def __init__(self, lengths: list[int], at: Stack, device: torch.device) -> None:
        sequence = torch.repeat_interleave(torch.tensor(lengths))
        start = torch.tensor([0, *lengths]).cumsum(0)
        self.position = (torch.arange(len(sequence)) - start[sequence]).to(device)
        # past the end: a sequence of its own
        sequence = pad(sequence, (0, at.count * at.length - len(sequence)), value=len(lengths))
        self.sequence = sequence.view(at.count, at.length).to(device)
        self.first, self.last = self.sequence[:, :1], self.sequence[:, -1:]
        self.foreign = (self.sequence[:, :, None] != self.sequence[:, None, :])[:, None, None]  # [n,1,1,C,C]
        self.at = at

    def table(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """The angle table of the stack: positions restart with each sequence."""
        if not length:
            return None
        table = angles(0, min(len(self.position), length), length, dtype, device)[self.position]
        return pad(table, (0, 0, 0, self.sequence.numel() - len(table))).view(self.at.count, self.at.length, 2)

    def outermost(self, stack: Tensor, *, last: bool) -> Tensor:
        """A stack with zeros outside the first (the last) sequence of each chunk."""
        inner = self.sequence != (self.last if last else self.first)
        return self.at.by_position(stack).masked_fill(inner[:, None, None, :, None], 0).view(stack.shape)

    def running_sums(self, per_chunk: Tensor, *, reverse: bool = False) -> Tensor:
        """Sums over the chunks before (after) each one, of the sequence that goes on from them.

        ``per_chunk [n, B*Hk, ...]`` sums the last (first) sequence of each chunk. Doubling steps instead of differences of
        one running sum: a difference would lose digits, and let NaN pass from one sequence to the next.
        """
        ours, theirs = (self.first, self.last) if reverse else (self.last, self.first)
        if reverse:
            per_chunk, ours, theirs = per_chunk.flip(0), ours.flip(0), theirs.flip(0)
        shape = (-1, *[1] * (per_chunk.dim() - 1))
        sums, step = per_chunk.clone(), 1
        while step < self.at.count:
            same = (ours[step:] == ours[:-step]).view(shape)
            sums[step:] += sums[:-step].masked_fill(~same, 0)
            step *= 2
        before = torch.cat([torch.zeros_like(sums[:1]), sums[:-1]])
        goes_on = torch.cat([torch.zeros_like(ours[:1], dtype=torch.bool), ours[:-1] == theirs[1:]]).view(shape)
        before = before.masked_fill_(~goes_on, 0)
        return before.flip(0) if reverse else before


def packed_groups(cu_seqlens: Tensor, most: int) -> list[tuple[slice, list[int]]]:
    """Packed sequences brought together in groups of at most ``most`` positions (or one longer sequence): span, lengths."""
    groups: list[tuple[slice, list[int]]] = []
    for start, end in pairwise(cu_seqlens.tolist()):
        if start == end:
            continue
        if groups and end - groups[-1][0].start <= most:
            span, lengths = groups[-1]
            groups[-1] = (slice(span.start, end), [*lengths, end - start])
        else:
            groups.append((slice(start, end), [end - start]))
    return groups
