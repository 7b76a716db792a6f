"""Sequences as stacks of chunks: the layout of the plain form, its angles and decays, and the sums over chunks.

A stack holds all chunks of all heads as one batch of matrices, chunks outermost: ``[n*B*Hk, G*C, channels]`` for rows
(queries; the G heads that share a key head lie one below the other) and ``[n*B*Hk, C, channels]`` for keys.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from cosformer.ops.angles import cached_angles
from cosformer.ops.decay import by_feature, exponents, fade


class Stack(NamedTuple):
    """The sizes of a stack: ``count`` chunks of ``length`` positions, of which ``positions`` are real."""

    batch: int
    key_heads: int
    groups: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
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
        """Write a stack to ``into [B,heads,N,c]``, rounded to its dtype."""
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

    def rotate(self, stack: Tensor, table: Tensor | None) -> Tensor:
        """Features at their angles, ``[x cos | x sin]``, of a stack of features x; without a table x itself."""
        if table is None:
            return stack
        x = self.by_position(stack)
        return (x[..., None, :] * table[:, None, None, :, :, None]).view(*stack.shape[:2], -1)

    def rotate_back(self, stack: Tensor, table: Tensor | None) -> Tensor:
        """The transpose of :meth:`rotate`: ``y_1 cos + y_2 sin`` of ``[y_1 | y_2]``."""
        if table is None:
            return stack
        first, second = self.by_position(stack).chunk(2, dim=-1)
        cos, sin = table[:, None, None, :, :, None].unbind(-2)
        return (first * cos).addcmul_(second, sin).view(*stack.shape[:2], -1)

    def angles(self, first: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """cos and sin of the positions from ``first`` on, ``[n, C, 2]``, zero past the end; None without angles."""
        if not length:
            return None
        table = cached_angles(first, self.positions, length, dtype, device)
        return (pad(table, (0, 0, 0, self._missing)) if self._missing else table).view(self.count, self.length, 2)

    @property
    def _missing(self) -> int:
        return self.count * self.length - self.positions

    def _split(self, x: Tensor) -> Tensor:
        """A view ``[n, B, Hk, G, C, c]`` of ``[B, heads, n*C, c]``."""
        x = x.unflatten(2, (self.count, self.length)).unflatten(1, (self.key_heads, -1))
        return x.permute(3, 0, 1, 2, 4, 5)


class Decay:
    """Rates ``[Hk,D]`` over the chunks of a stack.

    Queries and keys carry their decay as factors relative to a point inside their chunk, the middle, so that no factor
    leaves the range of a float; sums over a chunk's keys stand at its middle, and lose what the way from middle to
    middle takes.
    """

    def __init__(self, rates: Tensor, features: int, at: Stack) -> None:
        self.at, self.middle = at, at.length // 2
        self.rates = rates.repeat(at.batch, 1)
        self.of_features = by_feature(self.rates, features)
        offset = torch.arange(at.length, device=rates.device)[:, None] - self.middle
        self.on_queries, self.on_keys = (exponents(self.rates[:, None], x, rates.dtype) for x in (offset, -offset))

    def weigh(self, stack: Tensor, table: Tensor) -> Tensor:
        """A stack of queries or keys, or of their gradients, times its table; in place."""
        self.at.by_position(stack).mul_(table[:, None])
        return stack

    def fade(self, sums: Tensor, positions: int) -> Tensor:
        """Sums ``[..., B*Hk, F, X]`` so many positions later."""
        return fade(sums, self.of_features[..., None], positions)

    @property
    def beyond(self) -> int:
        """From the middle of the last chunk to the last position."""
        return self.at.positions - 1 - (self.at.count - 1) * self.at.length - self.middle

    def to_end(self, per_chunk: Tensor) -> Tensor:
        """``per_chunk [n, B*Hk, F, X]``, each at the middle of its chunk, as they are at the last position."""
        chunk = torch.arange(self.at.count - 1, -1, -1, device=per_chunk.device)
        distance = (chunk * self.at.length + self.beyond)[:, None, None]
        return per_chunk * exponents(self.of_features, distance, per_chunk.dtype)[..., None]


def running_sums(
    per_chunk: Tensor, first: Tensor, decay: Decay | None, *, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """``per_chunk [n, B*Hk, F, X]`` -> for each chunk ``first`` plus the sum of the chunks before it, and the whole
    sum.

    ``reverse``: of the chunks after it. ``first`` and the whole sum stand at the positions outside of the stack that
    they belong to: the last one before it, and the last one in it.
    """
    if reverse:
        per_chunk = per_chunk.flip(0)
    if decay is None:
        sums = torch.cat([first[None], per_chunk]).cumsum_(0)
        del per_chunk  # as large as the sums, which are about to be copied
        # a copy of the whole sum, which lives on and must not keep the others alive
        return (sums[:-1].flip(0) if reverse else sums[:-1]), sums[-1].clone()
    come, go = (decay.beyond, decay.middle + 1) if reverse else (decay.middle + 1, decay.beyond)
    sums = torch.cat([decay.fade(first, come)[None], decay.fade(per_chunk[:-1], decay.at.length)])
    sums = add_doubling(sums, lambda earlier, step: decay.fade(earlier, step * decay.at.length))
    whole = decay.fade(sums[-1] + per_chunk[-1], go)
    return (sums.flip(0) if reverse else sums), whole


def add_doubling(sums: Tensor, carry: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Cumulative ``sums [n, ...]``, in place; ``carry(earlier, step)`` moves a sum ``step`` entries on."""
    step = 1
    while step < len(sums):
        sums[step:] += carry(sums[:-step], step)
        step *= 2
    return sums


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

    def angles(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """The angle table of the stack: positions restart with each sequence."""
        if not length:
            return None
        table = cached_angles(0, len(self.position), length, dtype, device)[self.position]
        return pad(table, (0, 0, 0, self.sequence.numel() - len(table))).view(self.at.count, self.at.length, 2)

    def outermost(self, stack: Tensor, *, last: bool) -> Tensor:
        """A stack with zeros outside the first (the last) sequence of each chunk."""
        inner = self.sequence != (self.last if last else self.first)
        return self.at.by_position(stack).masked_fill(inner[:, None, None, :, None], 0).view(stack.shape)

    def running_sums(self, per_chunk: Tensor, decay: Decay | None, *, reverse: bool = False) -> Tensor:
        """Sums over the chunks before (after) each one, of the sequence that goes on from them.

        ``per_chunk [n, B*Hk, F, X]`` sums the last (first) sequence of each chunk. Doubling steps instead of
        differences of one running sum: a difference would lose digits, and let NaN pass from one sequence to the next.
        """
        ours, theirs = (self.first, self.last) if reverse else (self.last, self.first)
        if reverse:
            per_chunk, ours, theirs = per_chunk.flip(0), ours.flip(0), theirs.flip(0)

        def fade(earlier: Tensor, step: int) -> Tensor:
            return earlier if decay is None else decay.fade(earlier, step * self.at.length)

        def carry(earlier: Tensor, step: int) -> Tensor:
            same = (ours[step:] == ours[:-step])[..., None, None]
            return fade(earlier, step).masked_fill(~same, 0)

        sums = fade(add_doubling(per_chunk.clone(), carry)[:-1], 1)
        before = torch.cat([torch.zeros_like(per_chunk[:1]), sums])
        goes_on = torch.cat([torch.zeros_like(ours[:1], dtype=torch.bool), ours[:-1] == theirs[1:]])
        before = before.masked_fill_(~goes_on[..., None, None], 0)
        return before.flip(0) if reverse else before


def packed_groups(cu_seqlens: Tensor, most: int) -> list[tuple[slice, list[int]]]:
    """Packed sequences in groups of at most ``most`` positions (or one longer sequence): span, lengths."""
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
