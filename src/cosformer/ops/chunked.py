"""The chunked form in plain PyTorch: linear in time and memory, causal or not, forward and backward.

A sequence is cut into chunks. Inside a chunk a D-wide product times one cosine matrix; between chunks a state with absolute
angles. Everything of a chunk stays in cache and in buffers that are made once, because freshly allocated large temporaries
cost more than the arithmetic.
"""

from collections.abc import Callable, Iterator, Sequence

from typing import Generic, TypeVar

import torch
from torch import Tensor

from cosformer.ops.angles import angle_tables
from cosformer.ops.chunk import Chunk, pack_state, unpack_state
from cosformer.ops.chunk_gradient import ChunkGradient
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.problem import Problem, accumulator, new_output

AnyChunk = TypeVar("AnyChunk", bound=Chunk)

HEADS = 8  # query heads worked on at once: their chunk buffers fit the caches of two cores


def chunk_length(head_dim: int) -> int:
    """128 measured best of 64, 128, 256 at 64 channels; never below D, so that the chunk states of backward stay O(N E)."""
    return max(128, head_dim)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    z: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    p: Problem,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``out [B,H,N,E]``, row sums ``den [B,H,N]``, and the state ``kv [B,Hk,F,E]``, ``z [B,Hk,F]`` after the keys."""
    acc = accumulator(q.dtype)
    out, den = new_output(q, v), q.new_empty(q.shape[:3], dtype=acc)
    shape = (*k.shape[:2], k.shape[-1] * (2 if p.q_len else 1))
    kv_next = q.new_zeros(*shape, v.shape[-1], dtype=acc) if kv is None else kv.clone()
    z_next = q.new_zeros(shape, dtype=acc) if z is None else z.clone()
    with torch.autocast(q.device.type, enabled=False):
        if cu_seqlens is None:
            _forward_sequence(q, k, v, key_mask, out, den, kv_next, z_next, p)
            return out, den, kv_next, z_next
        for span in _spans(cu_seqlens):
            cut = [x[:, :, span] for x in (q, k, v, out, den)]
            _forward_sequence(*cut[:3], None, *cut[3:], kv_next.zero_(), z_next.zero_(), p)
    return out, den, kv_next.zero_(), z_next.zero_()


def backward(
    g_out: Tensor,
    g_kv: Tensor,
    g_z: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    z: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    out: Tensor,
    den: Tensor,
    p: Problem,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the incoming state (where none came in: of a state of zeros)."""
    grads = [torch.empty_like(x) for x in (q, k, v)]
    dkv, dz = g_kv.clone(), g_z.clone()
    kv = torch.zeros_like(dkv) if kv is None else kv
    z = torch.zeros_like(dz) if z is None else z
    with torch.autocast(q.device.type, enabled=False):
        if cu_seqlens is None:
            _backward_sequence(g_out, q, k, v, key_mask, out, den, kv, z, *grads, dkv, dz, p)
        else:
            for span in _spans(cu_seqlens):
                cut = [x[:, :, span] for x in (g_out, q, k, v, out, den, *grads)]
                _backward_sequence(*cut[:4], None, *cut[4:6], kv, z, *cut[6:], dkv.zero_(), dz.zero_(), p)
    return grads[0], grads[1], grads[2], dkv, dz


def _spans(cu_seqlens: Tensor) -> Iterator[slice]:
    ends = cu_seqlens.tolist()
    return (slice(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True) if a < b)


class _Plan(Generic[AnyChunk]):
    """How one sequence is cut: chunks of positions, blocks of heads, and the angles of every position."""

    def __init__(self, kind: type[AnyChunk], q: Tensor, k: Tensor, v: Tensor, p: Problem) -> None:
        self.n, self.s, self.d, self.e = q.shape[2], k.shape[2], q.shape[3], v.shape[3]
        self.groups = q.shape[1] // k.shape[1]
        # keys that every row of this call sees as state: all of them, or those before the first causal query
        self.lead = self.s - self.n if p.causal else self.s
        self.kind, self.p, self.like = kind, p, q
        self.q_angles, self.k_angles = (
            self._angles(p.q_first, self.n, p.q_len),
            self._angles(p.k_first, self.s, p.k_len),
        )
        self.made: dict[tuple[int, int], AnyChunk] = {}

    def _angles(self, first: int | Tensor, count: int, length: int) -> Tensor:
        if not length:
            return self.like.new_empty(count, 0)
        return torch.stack(angle_tables(first, count, length, accumulator(self.like.dtype), self.like.device), dim=-1)

    def cuts(self, count: int) -> list[slice]:
        """Chunks of positions ``0 .. count-1``."""
        step = chunk_length(self.d)
        return [slice(i, min(i + step, count)) for i in range(0, count, step)]

    def chunk(self, heads: int, at: slice) -> AnyChunk:
        n = at.stop - at.start
        if (heads, n) not in self.made:
            self.made[heads, n] = self.kind(heads, self.groups, n, self.d, self.e, self.p, self.like)
        return self.made[heads, n]

    def keys_of(self, at: slice) -> slice:
        """The keys at the positions of causal rows ``at``."""
        return slice(self.lead + at.start, self.lead + at.stop)

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

    def absorb(self, k: Tensor, v: Tensor, hidden: Tensor | None, at: slice, state: Tensor) -> None:
        """Add the keys ``at`` to the state."""
        c = self.chunk(k.shape[0], at)
        c.load_keys(k[:, at], v[:, at], _cut(hidden, at), self.k_angles[at])
        state.baddbmm_(c.k.mT, c.vv)


def _mergeable(x: Tensor) -> bool:
    return x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * x.stride(1)


def _hidden(key_mask: Tensor | None, key_heads: int) -> Tensor | None:
    """``[B,S]``, True = keep -> ``[B,Hk,S,1]``, True = leave out."""
    return None if key_mask is None else (~key_mask)[:, None, :, None].repeat(1, key_heads, 1, 1)


def _cut(hidden: Tensor | None, at: slice) -> Tensor | None:
    return None if hidden is None else hidden[:, at]


def _forward_sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    den: Tensor,
    kv: Tensor,
    z: Tensor,
    p: Problem,
) -> None:
    """One sequence: fills ``out`` and ``den``, moves the state ``kv, z`` on, in place."""
    plan = _Plan(Chunk, q, k, v, p)
    divisor = NORMALISERS[p.normaliser].divisor
    q, out, den = (x.unflatten(1, (k.shape[1], -1)) for x in (q, out, den[..., None]))
    hidden = _hidden(key_mask, k.shape[1])
    for take in plan.blocks(q, k, v, out, den, kv, z):
        qs, ks, vs, outs, dens = (take(x) for x in (q, k, v, out, den))
        hides = None if hidden is None else take(hidden)
        state = pack_state(take(kv), take(z), p)
        for at in plan.cuts(plan.lead):
            plan.absorb(ks, vs, hides, at, state)
        for at in plan.cuts(plan.n):
            c, cs = plan.chunk(ks.shape[0], at), plan.q_angles[at]
            c.load_queries(qs[:, :, at])
            torch.bmm(c.q, state, out=c.y)
            total = c.row_sums(cs)
            if not p.causal:
                dens[:, :, at] = total
                c.scaled_rows(divisor(total, p.eps).reciprocal_(), cs, outs[:, :, at])
                continue
            here = plan.keys_of(at)
            values = c.load_keys(ks[:, here], vs[:, here], _cut(hides, here), plan.k_angles[here])
            total += c.by_head(c.scores().sum(-1, keepdim=True))
            dens[:, :, at] = total
            torch.bmm(c.w, values, out=c.o)
            o = c.add_rows(c.by_head(c.o), c.by_head(c.y), cs)
            torch.div(o, divisor(total, p.eps), out=outs[:, :, at])
            state.baddbmm_(c.k.mT, c.vv)
        unpack_state(state, take(kv), take(z), p)


def _backward_sequence(
    g_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    out: Tensor,
    den: Tensor,
    kv: Tensor,
    z: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dkv: Tensor,
    dz: Tensor,
    p: Problem,
) -> None:
    """One sequence: fills ``dq, dk, dv``, turns the gradient ``dkv, dz`` of the last state into that of the first."""
    plan = _Plan(ChunkGradient, q, k, v, p)
    q, g_out, out, den, dq = (x.unflatten(1, (k.shape[1], -1)) for x in (q, g_out, out, den[..., None], dq))
    hidden = _hidden(key_mask, k.shape[1])
    cuts = plan.cuts(plan.n)
    for take in plan.blocks(q, k, v, g_out, out, den, dq, dk, dv, kv, z, dkv, dz):
        qs, gs, outs, dens, dqs = (take(x) for x in (q, g_out, out, den, dq))
        ks, vs, dks, dvs = (take(x) for x in (k, v, dk, dv))
        hides = None if hidden is None else take(hidden)
        state, grad = pack_state(take(kv), take(z), p), pack_state(take(dkv), take(dz), p)
        for at in plan.cuts(plan.lead):
            plan.absorb(ks, vs, hides, at, state)
        states: Sequence[Tensor] = [state] * len(cuts)
        if p.causal:
            # what the rows of each chunk saw; recomputed forwards, because subtracting keys again would lose digits
            states = state.new_empty(len(cuts), *state.shape).unbind()
            for before, at in zip(states, cuts, strict=True):
                before.copy_(state)
                plan.absorb(ks, vs, hides, plan.keys_of(at), state)
        for before, at in zip(reversed(states), reversed(cuts), strict=True):
            c, cs, values = plan.chunk(ks.shape[0], at), plan.q_angles[at], None
            c.load_queries(qs[:, :, at])
            if p.causal:
                here = plan.keys_of(at)
                values = c.load_keys(ks[:, here], vs[:, here], _cut(hides, here), plan.k_angles[here])
                c.scores()
            b = c.row_gradients(gs[:, :, at], outs[:, :, at], dens[:, :, at], before, values, cs)
            c.query_gradients(before, b, values, dqs[:, :, at])
            if p.causal:
                c.key_gradients(grad, _cut(hides, here), plan.k_angles[here], dks[:, here], dvs[:, here], pairs=True)
            grad.baddbmm_(c.q.mT, c.gg)
        for at in plan.cuts(plan.lead):
            c, cs = plan.chunk(ks.shape[0], at), plan.k_angles[at]
            c.load_keys(ks[:, at], vs[:, at], _cut(hides, at), cs)
            c.key_gradients(grad, _cut(hides, at), cs, dks[:, at], dvs[:, at], pairs=False)
        unpack_state(grad, take(dkv), take(dz), p)
