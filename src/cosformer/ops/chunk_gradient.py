"""The backward arithmetic of one chunk: gradients of its rows (queries) and of its keys and values."""

import torch
from torch import Tensor

from cosformer.ops.chunk import Angles, Chunk, store
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import AttentionSpec


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
