"""The arithmetic of one chunk, on buffers that are made once and reused: the inner loops of the chunked form.

The angles sit on the value side. With c, s the cosines and sines of the positions,

    state  A = sum_j k'_j^T [v c | v s | c | s]_j            [D, X], X = 2E+2
    rows   y = q' A ;  num = y_1 c + y_2 s ;  den = y_3 c + y_4 s

which is Phi(q) (Phi(k)^T [v, 1]) with every product D wide. Without angles it is [v | 1], X = E+1. The backward pass has the
same shape with [g, b] in the place of [v, 1]: g = dL/dnum, b = dL/dden.
"""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops.angles import pair_weight
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import FP16_MAX, AttentionSpec, accumulator

# cos [n,1], sin [n,1] and both [n,2] of the positions of a chunk; empty without angles
Angles = tuple[Tensor, Tensor, Tensor]


class Chunk:
    """Buffers for ``n`` positions of ``heads`` key heads, each with ``groups`` query heads (``rows = groups * n``)."""

    def __init__(self, heads: int, groups: int, n: int, d: int, e: int, p: AttentionSpec, like: Tensor) -> None:
        dtype, device = accumulator(like.dtype), like.device
        x = 2 * e + 2 if p.q_len else e + 1
        rows = groups * n

        def new(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.e, self.p, self.split = e, p, (heads, groups, n, -1)
        self.q, self.k, self.v = new(heads, rows, d), new(heads, n, d), new(heads, n, e)
        self.vv, self.y, self.o = new(heads, n, x), new(heads, rows, x), new(heads, rows, e)
        # views are made once: slicing costs as much as a small kernel
        self.kt = self.k.mT
        self.q_heads, self.y_heads, self.o_heads = self.by_head(self.q), self.by_head(self.y), self.by_head(self.o)
        self.y_parts, self.vv_parts = self.parts(self.y_heads), self.parts(self.vv)
        if p.causal:
            self.w = new(heads, rows, n)
            self.w_heads = self.by_head(self.w)
            weight = pair_weight(n, n, causal=True, q_len=p.q_len, k_len=p.k_len, dtype=dtype, device=device)
            assert weight is not None  # a causal weight always has zeros
            self.weight = weight

    def by_head(self, x: Tensor) -> Tensor:
        """``[h, rows, ...] -> [h, groups, n, ...]``, a view."""
        return x.view(self.split)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """Views of the columns of ``[x_1 | x_2 | x_3 x_4]``, or of ``[x_1 | x_3]`` without angles."""
        return x.split((self.e, self.e, 2) if self.p.q_len else (self.e, 1), dim=-1)

    def load_queries(self, q: Tensor) -> None:
        """``q [h, groups, n, D]`` -> features."""
        self._load(self.q_heads, q)

    def load_keys(self, k: Tensor, v: Tensor, angles: Angles) -> Tensor:
        """``k [h, n, D]`` -> features; ``v`` -> ``vv``. Returns v in the accumulator's dtype."""
        self._load(self.k, k)
        self.expand(self.vv_parts, v, None, angles)
        return v if v.dtype == self.v.dtype and v.stride(-1) == 1 else self.v.copy_(v)

    def _load(self, into: Tensor, x: Tensor) -> None:
        if not self.p.relu:
            into.copy_(x)
        elif x.dtype == into.dtype:
            torch.clamp_min(x, 0, out=into)
        else:
            into.copy_(x).clamp_min_(0)

    def expand(self, into: tuple[Tensor, ...], x: Tensor, last: Tensor | None, angles: Angles) -> None:
        """``[x c | x s | last c | last s]``, or ``[x | last]`` without angles; ``last`` None stands for ones."""
        cos, sin, both = angles
        if not self.p.q_len:
            into[0].copy_(x)
            into[1].fill_(1) if last is None else into[1].copy_(last)
            return
        torch.mul(x, cos, out=into[0])
        torch.mul(x, sin, out=into[1])
        into[2].copy_(both) if last is None else torch.mul(last, both, out=into[2])

    def scores(self) -> Tensor:
        """``w = (q' k'^T) * cosine``, zero above the diagonal, ``[h, rows, n]``."""
        torch.bmm(self.q, self.kt, out=self.w)
        self.w_heads.mul_(self.weight)
        return self.w

    def row_sums(self, angles: Angles) -> Tensor:
        """den of ``y = q' A``, ``[h, groups, n, 1]``."""
        last = self.y_parts[-1]
        return (last * angles[2]).sum(-1, keepdim=True) if self.p.q_len else last.clone()

    def add_rows(self, into: Tensor, parts: tuple[Tensor, ...], angles: Angles) -> Tensor:
        """``into += y_1 c + y_2 s``, or ``y_1`` without angles."""
        if not self.p.q_len:
            return into.add_(parts[0])
        return into.addcmul_(parts[0], angles[0]).addcmul_(parts[1], angles[1])

    def scaled_rows(self, factor: Tensor, angles: Angles, into: Tensor) -> None:
        """``into = factor * (y_1 c + y_2 s)``: what non-causal rows need."""
        if not self.p.q_len:
            self.finish(torch.mul, self.y_parts[0], factor, into)
            return
        torch.mul(self.y_parts[0], factor * angles[0], out=self.o_heads)
        self.o_heads.addcmul_(self.y_parts[1], factor * angles[1])
        into.copy_(self.o_heads)

    def finish(self, operation: Any, x: Tensor, y: Tensor, into: Tensor) -> None:
        """``into = operation(x, y)``, rounded once where the output is in half precision."""
        if into.dtype == x.dtype:
            operation(x, y, out=into)
        else:
            into.copy_(operation(x, y, out=self.o_heads))

    def store_gradient(self, grad: Tensor, x: Tensor, into: Tensor) -> None:
        """Gradient of the features ``x`` -> gradient of the input, in its dtype; float16 saturates, never inf."""
        if self.p.relu:
            torch.ops.aten.threshold_backward.grad_input(grad, x, 0, grad_input=grad)
        store(grad.view(into.shape), into)


class ChunkGradient(Chunk):
    """A chunk with room for gradients. ``grad [h,D,X]`` is dL/dA of the state A, summed over the rows after the keys."""

    def __init__(self, heads: int, groups: int, n: int, d: int, e: int, p: AttentionSpec, like: Tensor) -> None:
        super().__init__(heads, groups, n, d, e, p, like)
        self.g, self.gg = torch.empty_like(self.o), torch.empty_like(self.y)
        self.g_heads, self.gg_parts = self.by_head(self.g), self.parts(self.by_head(self.gg))
        self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (self.q, self.k, self.v))
        self.ky = torch.empty_like(self.vv)
        self.ky_parts = self.parts(self.ky)
        if p.causal:
            self.pair = torch.empty_like(self.w)
            self.pair_heads = self.by_head(self.pair)

    def row_gradients(
        self, g_out: Tensor, out: Tensor, den: Tensor, state: Tensor, values: Tensor | None, angles: Angles
    ) -> Tensor:
        """g = dL/dnum into ``g``, ``[g c | g s | b c | b s]`` into ``gg``; returns b = dL/dden ``[h, rows, 1]``."""
        normaliser, eps = NORMALISERS[self.p.normaliser], self.p.eps
        divisor = normaliser.divisor(den, eps)
        g = self.g_heads
        g.copy_(g_out).div_(divisor)
        if out.dtype != self.o.dtype:
            # a rounded output would put its error into every dL/dden: compute these rows again
            out = self._rows(state, values, angles).div_(divisor)
        b = (g * out).sum(-1, keepdim=True).mul_(normaliser.slope(den, eps)).neg_()
        self.expand(self.gg_parts, g, b, angles)
        return b.view(*self.g.shape[:2], 1)

    def _rows(self, state: Tensor, values: Tensor | None, angles: Angles) -> Tensor:
        if values is None:
            self.o.zero_()
        else:
            torch.bmm(self.w, values, out=self.o)
        torch.bmm(self.q, state, out=self.y)
        return self.add_rows(self.o_heads, self.y_parts, angles)

    def query_gradients(self, state: Tensor, b: Tensor, values: Tensor | None, into: Tensor) -> None:
        """dq of the rows, into ``[h, groups, n, D]``; leaves dL/dw of causal pairs in ``pair``."""
        torch.bmm(self.gg, state.mT, out=self.dq)
        if values is not None:
            torch.bmm(self.g, values.mT, out=self.pair)
            self.pair.add_(b)
            self.pair_heads.mul_(self.weight)
            self.dq.baddbmm_(self.pair, self.k)
        self.store_gradient(self.dq, self.q, into)

    def key_gradients(self, grad: Tensor, dk: Tensor, dv: Tensor, angles: Angles, *, pairs: bool) -> None:
        """dk and dv of the keys, into ``[h, n, D]`` and ``[h, n, E]``; ``pairs``: rows of this chunk see them too."""
        torch.bmm(self.vv, grad.mT, out=self.dk)
        torch.bmm(self.k, grad, out=self.ky)
        if pairs:
            self.dk.baddbmm_(self.pair.mT, self.q)
            torch.bmm(self.w.mT, self.g, out=self.dv)
        else:
            self.dv.zero_()
        self.store_gradient(self.dk, self.k, dk)
        store(self.add_rows(self.dv, self.ky_parts, angles), dv)


def store(grad: Tensor, into: Tensor) -> None:
    """Copy with a cast; beyond float16's range it saturates."""
    into.copy_(grad.clamp_(-FP16_MAX, FP16_MAX) if into.dtype == torch.float16 else grad)


def pack_state(kv: Tensor, z: Tensor, p: AttentionSpec) -> Tensor:
    """``kv [h,F,E]``, ``z [h,F]`` -> ``A [h,D,X]``, a copy."""
    if not p.q_len:
        return torch.cat([kv, z[..., None]], dim=-1)
    halves = [*kv.chunk(2, dim=1), *z[..., None].chunk(2, dim=1)]
    return torch.cat(halves, dim=-1)


def unpack_state(state: Tensor, kv: Tensor, z: Tensor, p: AttentionSpec) -> None:
    """``A [h,D,X]`` -> into ``kv [h,F,E]``, ``z [h,F]``."""
    e, d = kv.shape[-1], state.shape[1]
    if not p.q_len:
        kv.copy_(state[..., :e])
        z.copy_(state[..., e])
        return
    for half in (0, 1):
        kv[:, half * d : (half + 1) * d].copy_(state[..., half * e : (half + 1) * e])
        z[:, half * d : (half + 1) * d].copy_(state[..., 2 * e + half])
