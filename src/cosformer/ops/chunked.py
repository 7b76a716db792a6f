"""The chunked form in plain PyTorch: linear in time and memory, causal or not, forward and backward.

A sequence is cut into chunks. Inside a chunk a D-wide product times one cosine matrix; between chunks a state with absolute
angles. Everything of a chunk stays in cache and in buffers that are made once, because freshly allocated large temporaries
cost more than the arithmetic.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from cosformer.ops.angles import angle_tables
from cosformer.ops.checks import without_autocast
from cosformer.ops.chunk import Angles, Chunk, ChunkGradient, pack_state, unpack_state
from cosformer.ops.dense import hide
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import AttentionSpec, Call, accumulator, new_output

AnyChunk = TypeVar("AnyChunk", bound=Chunk)

HEADS = 8  # query heads worked on at once: their chunk buffers fit the caches of two cores


def chunk_length(head_dim: int) -> int:
    """128 measured best of 64, 128, 256 at 64 channels; never below D, so that the chunk states of backward stay O(N E)."""
    return max(128, head_dim)


def forward(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``out [B,H,N,E]``, row sums ``den [B,H,N]``, and the state ``kv [B,Hk,F,E]``, ``z [B,Hk,F]`` after the keys."""
    q, k, v, kv, z, key_mask, cu_seqlens, _, p = call
    acc = accumulator(q.dtype)
    k, v = hide(k, key_mask), hide(v, key_mask)
    out, den = new_output(q, v), q.new_empty(q.shape[:3], dtype=acc)
    shape = (*k.shape[:2], k.shape[-1] * (2 if p.q_len else 1))
    kv_next = q.new_zeros(*shape, v.shape[-1], dtype=acc) if kv is None else kv.clone()
    z_next = q.new_zeros(shape, dtype=acc) if z is None else z.clone()
    with without_autocast(q.device):
        if cu_seqlens is None:
            _forward_sequence(q, k, v, out, den, kv_next, z_next, p)
            return out, den, kv_next, z_next
        for span in _spans(cu_seqlens):
            q1, k1, v1, out1, den1 = (x[:, :, span] for x in (q, k, v, out, den))
            _forward_sequence(q1, k1, v1, out1, den1, kv_next.zero_(), z_next.zero_(), p)
    return out, den, kv_next.zero_(), z_next.zero_()


def backward(
    call: Call,
    g_out: Tensor,
    g_kv: Tensor,
    g_z: Tensor,
    out: Tensor,
    den: Tensor,
    kv_next: Tensor,
    z_next: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the incoming state (where none came in: of a state of zeros)."""
    q, k, v, kv, z, key_mask, cu_seqlens, _, p = call
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    k, v = hide(k, key_mask), hide(v, key_mask)
    dkv, dz = g_kv.clone(), g_z.clone()
    kv = torch.zeros_like(dkv) if kv is None else kv
    z = torch.zeros_like(dz) if z is None else z
    with without_autocast(q.device):
        if cu_seqlens is None:
            _backward_sequence(g_out, q, k, v, out, den, kv, z, dq, dk, dv, dkv, dz, p)
        else:
            for span in _spans(cu_seqlens):
                g1, q1, k1, v1, out1, den1 = (x[:, :, span] for x in (g_out, q, k, v, out, den))
                dq1, dk1, dv1 = (x[:, :, span] for x in (dq, dk, dv))
                dkv.zero_()
                dz.zero_()
                _backward_sequence(g1, q1, k1, v1, out1, den1, kv, z, dq1, dk1, dv1, dkv, dz, p)
    if key_mask is not None:
        hidden = ~key_mask[:, None, :, None]
        dk.masked_fill_(hidden, 0)
        dv.masked_fill_(hidden, 0)
    return dq, dk, dv, dkv, dz


def _spans(cu_seqlens: Tensor) -> Iterator[slice]:
    ends = cu_seqlens.tolist()
    return (slice(a, b) for a, b in pairwise(ends) if a < b)


class _Plan(Generic[AnyChunk]):
    """How one sequence is cut: chunks of positions, blocks of heads, and the angles of every chunk."""

    def __init__(self, kind: type[AnyChunk], q: Tensor, k: Tensor, v: Tensor, p: AttentionSpec) -> None:
        n, s, d = q.shape[2], k.shape[2], q.shape[3]
        self.groups, self.step = q.shape[1] // k.shape[1], chunk_length(d)
        self.kind, self.sizes, self.p, self.like = kind, (d, v.shape[3]), p, q
        # keys that every row of this call sees as state: all of them, or those before the first causal query
        self.lead = s - n if p.causal else s
        self.q_angles = self._angles(p.q_first, n, p.q_len)
        self.lead_angles = self._angles(p.k_first, self.lead, p.k_len)
        self.made: dict[tuple[int, int], AnyChunk] = {}

    def _angles(self, first: int | Tensor, count: int, length: int) -> list[Angles]:
        if not length:
            empty = self.like.new_empty(0)
            return [(empty, empty, empty)] * -(-count // self.step)
        tables = angle_tables(first, count, length, accumulator(self.like.dtype), self.like.device)
        both = torch.stack(tables, dim=-1)
        pieces = [x.split(self.step) for x in (both[:, :1], both[:, 1:], both)]
        return list(zip(*pieces, strict=True)) if count else []

    def cut(self, x: Tensor, dim: int) -> Iterable[Tensor]:
        """Views of the chunks of ``x`` along ``dim``; none of nothing."""
        return x.split(self.step, dim) if x.shape[dim] else ()

    def chunk(self, heads: int, n: int) -> AnyChunk:
        """Buffers for ``n`` positions of ``heads`` key heads."""
        if (heads, n) not in self.made:
            self.made[heads, n] = self.kind(heads, self.groups, n, *self.sizes, self.p, self.like)
        return self.made[heads, n]

    def split_keys(self, *tensors: Tensor) -> tuple[list[Any], list[Any]]:
        """Chunks of ``[h, S, ...]`` tensors, zipped: those of the leading keys, and those beside causal rows."""
        lead = [x[:, : self.lead] for x in tensors]
        rest = [x[:, self.lead :] for x in tensors]
        before, beside = (list(zip(*(self.cut(x, 1) for x in half), strict=True)) for half in (lead, rest))
        return before, beside

    def blocks(self, *tensors: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
        """Selectors of a few heads at a time: each cuts ``[B, Hk, ...]`` to a view ``[h, ...]``."""
        batch, key_heads = tensors[0].shape[:2]
        step = max(1, HEADS // self.groups)
        if all(_mergeable(x) for x in tensors):
            for h in range(0, batch * key_heads, step):
                yield lambda x, h=h: x.flatten(0, 1)[h : h + step]
        else:
            for b in range(batch):
                for h in range(0, key_heads, step):
                    yield lambda x, b=b, h=h: x[b, h : h + step]

    def absorb(self, k: Tensor, v: Tensor, angles: Angles, state: Tensor) -> None:
        """Add one chunk of keys to the state."""
        c = self.chunk(k.shape[0], k.shape[1])
        c.load_keys(k, v, angles)
        state.baddbmm_(c.kt, c.vv)


def _mergeable(x: Tensor) -> bool:
    return x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)


def _forward_sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    den: Tensor,
    kv: Tensor,
    z: Tensor,
    p: AttentionSpec,
) -> None:
    """One sequence: fills ``out`` and ``den``, moves the state ``kv, z`` on, in place."""
    plan = _Plan(Chunk, q, k, v, p)
    divisor = NORMALISERS[p.normaliser].divisor
    q, out, den = (x.unflatten(1, (k.shape[1], -1)) for x in (q, out, den[..., None]))
    for take in plan.blocks(q, k, v, out, den, kv, z):
        before, beside = plan.split_keys(take(k), take(v))
        rows = zip(*(plan.cut(take(x), 2) for x in (q, out, den)), plan.q_angles, strict=True)
        state = pack_state(take(kv), take(z), p)
        for (k_piece, v_piece), angles in zip(before, plan.lead_angles, strict=True):
            plan.absorb(k_piece, v_piece, angles, state)
        for i, (q_rows, out_rows, den_rows, angles) in enumerate(rows):
            c = plan.chunk(state.shape[0], q_rows.shape[2])
            c.load_queries(q_rows)
            torch.bmm(c.q, state, out=c.y)
            total = c.row_sums(angles)
            if p.causal:
                k_piece, v_piece = beside[i]
                values = c.load_keys(k_piece, v_piece, angles)
                total += c.by_head(c.scores().sum(-1, keepdim=True))
                torch.bmm(c.w, values, out=c.o)
                c.add_rows(c.o_heads, c.y_parts, angles)
                c.finish(torch.div, c.o_heads, divisor(total, p.eps), out_rows)
                state.baddbmm_(c.kt, c.vv)
            else:
                c.scaled_rows(divisor(total, p.eps).reciprocal_(), angles, out_rows)
            den_rows.copy_(total)
        unpack_state(state, take(kv), take(z), p)


def _backward_sequence(
    g_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    den: Tensor,
    kv: Tensor,
    z: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dkv: Tensor,
    dz: Tensor,
    p: AttentionSpec,
) -> None:
    """One sequence: fills ``dq, dk, dv``, turns the gradient ``dkv, dz`` of the last state into that of the first."""
    plan = _Plan(ChunkGradient, q, k, v, p)
    q, g_out, out, den, dq = (x.unflatten(1, (k.shape[1], -1)) for x in (q, g_out, out, den[..., None], dq))
    for take in plan.blocks(q, k, v, g_out, out, den, dq, dk, dv, kv, z, dkv, dz):
        before, beside = plan.split_keys(take(k), take(v), take(dk), take(dv))
        rows = list(zip(*(plan.cut(take(x), 2) for x in (q, g_out, out, den, dq)), plan.q_angles, strict=True))
        state, grad = pack_state(take(kv), take(z), p), pack_state(take(dkv), take(dz), p)
        for (k_piece, v_piece, _, _), angles in zip(before, plan.lead_angles, strict=True):
            plan.absorb(k_piece, v_piece, angles, state)
        states: Sequence[Tensor] = [state] * len(rows)
        if p.causal:
            # what the rows of each chunk saw; recomputed forwards, because subtracting keys again would lose digits
            states = state.new_empty(len(rows), *state.shape).unbind()
            for seen, (k_piece, v_piece, _, _), row in zip(states, beside, rows, strict=True):
                seen.copy_(state)
                plan.absorb(k_piece, v_piece, row[-1], state)
        for i in reversed(range(len(rows))):
            q_rows, g_rows, out_rows, den_rows, dq_rows, angles = rows[i]
            c, values = plan.chunk(state.shape[0], q_rows.shape[2]), None
            c.load_queries(q_rows)
            if p.causal:
                k_piece, v_piece, dk_piece, dv_piece = beside[i]
                values = c.load_keys(k_piece, v_piece, angles)
                c.scores()
            b = c.row_gradients(g_rows, out_rows, den_rows, states[i], values, angles)
            c.query_gradients(states[i], b, values, dq_rows)
            if p.causal:
                c.key_gradients(grad, dk_piece, dv_piece, angles, pairs=True)
            grad.baddbmm_(c.q.mT, c.gg)
        for (k_piece, v_piece, dk_piece, dv_piece), angles in zip(before, plan.lead_angles, strict=True):
            c = plan.chunk(k_piece.shape[0], k_piece.shape[1])
            c.load_keys(k_piece, v_piece, angles)
            c.key_gradients(grad, dk_piece, dv_piece, angles, pairs=False)
        unpack_state(grad, take(dkv), take(dz), p)
