"""A stretch of a sequence as stacks of chunks: its rows, their keys, and the gradients of both, all chunks at once.

Rows of a chunk see its keys in pairs, and the keys of other chunks as terms ``[F, E+1]``: sums of features times ``[v,
1]``, whose last column gives the row sums. Backwards ``[g, b] = [dL/dnum, dL/dden]`` takes the place of ``[v, 1]``.
Features are made where they are used and scores given up as soon as they can be, because each is twice as large as the
queries.
"""

from typing import Any

import torch
from torch import Tensor

from cosformer.ops.angles import cached_pair_weight
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.plain.stack import Decay, Packing, Stack, running_sums
from cosformer.ops.spec import AttentionSpec, accumulator


class Segment:
    """Rows with the keys beside them (causal, packed), rows alone, or keys alone."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hidden: Tensor | None,
        first: int,
        chunk: int,
        decay: Tensor | None,
        p: AttentionSpec,
        lengths: list[int] | None = None,
    ) -> None:
        """``first``: the position of the first row, or of the first key where there are no rows. ``decay [Hk,D]``."""
        self.p, self.hidden, self.dtype, self.device = p, hidden, accumulator(q.dtype), q.device
        positions, in_chunks = max(q.shape[2], k.shape[2]), k.shape[2] > 0
        length = chunk if in_chunks else positions
        groups = q.shape[1] // k.shape[1]
        self.at = Stack(k.shape[0], k.shape[1], groups, -(-positions // length), length, positions)
        self.packing = None if lengths is None else Packing(lengths, self.at, q.device)
        period = p.k_len if in_chunks else p.q_len
        if self.packing is None:
            self.table = self.at.angles(first, period, self.dtype, q.device)
        else:
            self.table = self.packing.angles(period, self.dtype, q.device)
        self.decay = None if decay is None else Decay(decay, q.shape[3] * (2 if p.k_len else 1), self.at)
        self.pairs = in_chunks and q.shape[2] > 0
        # packed sequences that are not causal see sums of the chunks before, and of those after
        self.directions = 1 if p.causal else 2
        if q.shape[2]:
            self.q = self._weigh_queries(self.at.fold(q, self.dtype, relu=p.relu))
        if in_chunks:
            self.k = self._weigh_keys(self.at.fold(k, self.dtype, relu=p.relu, hidden=hidden))
            # masked values too: zero times NaN is NaN
            self.v = torch.nn.functional.pad(self.at.fold(v, self.dtype, hidden=hidden), (0, 1), value=1.0)

    def _weigh_queries(self, stack: Tensor) -> Tensor:
        return stack if self.decay is None else self.decay.weigh(stack, self.decay.on_queries)

    def _weigh_keys(self, stack: Tensor) -> Tensor:
        return stack if self.decay is None else self.decay.weigh(stack, self.decay.on_keys)

    def _row_features(self, direction: int = 0) -> Tensor:
        """The queries' features; packed: of those that see the chunks before (1: after) theirs."""
        return self._outermost(self.at.rotate(self.q, self.table), last=direction == 1)

    def _key_features(self, direction: int = 0) -> Tensor:
        """The keys' features; packed: of those that chunks after (1: before) theirs see."""
        return self._outermost(self.at.rotate(self.k, self.table), last=direction == 0)

    def _outermost(self, stack: Tensor, *, last: bool) -> Tensor:
        return stack if self.packing is None else self.packing.outermost(stack, last=last)

    def state_after(self, state: Tensor) -> Tensor:
        """The state ``[B*Hk, F, E+1]`` after these keys, from the one before them."""
        per_chunk = self.at.by_chunk(torch.bmm(self._key_features().mT, self.v))
        if self.decay is None:
            return state + per_chunk.sum(0)
        return self.decay.fade(state, self.at.positions) + self.decay.to_end(per_chunk).sum(0)

    def key_sums(self, state: Tensor) -> tuple[list[Tensor], Tensor]:
        """The terms of the rows, one for each direction, and the state after this segment's keys."""
        if not self.pairs:
            return [state], state
        if self.packing is None:
            before, state = running_sums(self._sums(self._key_features(), self.v), state, self.decay)
            return [before.flatten(0, 1)], state
        terms = []
        for direction in range(self.directions):
            sums = self._sums(self._key_features(direction), self.v)
            terms.append(self.packing.running_sums(sums, self.decay, reverse=direction == 1).flatten(0, 1))
        return terms, state

    def _row_sums(self, g: Tensor, dstate: Tensor) -> tuple[list[Tensor], Tensor]:
        """The mirror of :meth:`key_sums`: what the keys see of the rows, and the gradient of the state before them."""
        if self.packing is not None:
            terms = []
            for direction in range(self.directions):
                sums = self._sums(self._row_features(direction), g)
                terms.append(self.packing.running_sums(sums, self.decay, reverse=direction == 0).flatten(0, 1))
            return terms, dstate
        if not self.pairs:
            return [], dstate.baddbmm(self._row_features().mT, g)
        after, dstate = running_sums(self._sums(self._row_features(), g), dstate, self.decay, reverse=True)
        return [after.flatten(0, 1)], dstate

    def _sums(self, features: Tensor, values: Tensor) -> Tensor:
        return self.at.by_chunk(torch.bmm(features.mT, values))

    def _scores(self) -> Tensor:
        """``(q' k'^T) * weight`` of the pairs inside each chunk, ``[n*B*Hk, G*C, C]``."""
        return self._weigh_pairs(torch.bmm(self.q, self.k.mT))

    def _weigh_pairs(self, scores: Tensor) -> Tensor:
        p, by_position = self.p, self.at.by_position(scores)
        causal = p.causal and self.decay is None
        if causal or p.q_len:
            by_position.mul_(cached_pair_weight(self.at.length, causal, p.q_len, self.dtype, self.device))
        if self.decay is not None:
            by_position.tril_()  # selected: what decay makes of pairs that are not seen may be too large for a product
        if self.packing is not None:
            by_position.masked_fill_(self.packing.foreign, 0)
        return scores

    def rows(self, terms: list[Tensor], scores: Tensor | None = None) -> Tensor:
        """Numerators and row sums, ``[., ., E+1]``."""
        total = None
        for direction, before in enumerate(terms):
            total = _add_product(total, self._row_features(direction), before)
        assert total is not None  # rows have at least one term
        return total.baddbmm_(self._scores() if scores is None else scores, self.v) if self.pairs else total

    def finish_rows(self, rows: Tensor, out: Tensor, den_out: Tensor) -> None:
        num, den = rows[..., :-1], rows[..., -1:]
        self.at.unfold(num.div_(NORMALISERS[self.p.normaliser].divisor(den, self.p.eps)), out)
        self.at.unfold(den, den_out)

    def gradients(self, state: Tensor, dstate: Tensor, of_rows: list[Tensor], dk: Tensor, dv: Tensor) -> Tensor:
        """Fill dq (the last ``of_rows``: g_out, out, den, dq), dk and dv; from the gradient of the state after this
        segment to that of the state before it."""
        g_out, out, den, dq = of_rows
        terms, _ = self.key_sums(state)
        scores = self._scores() if self.pairs else None
        g = self._gradients_of_sums(g_out, out, den, terms, scores)
        values = None if scores is None else torch.bmm(scores.mT, g)
        del scores
        seen, dstate = self._row_sums(g, dstate)
        pairs = self._weigh_pairs(torch.bmm(g, self.v.mT)) if self.pairs else None
        self._query_gradients(g, terms, pairs, dq)
        if self.pairs:
            self.key_gradients(seen, dk, dv, pairs, values)
        return dstate

    def _gradients_of_sums(
        self, g_out: Tensor, out: Tensor, den: Tensor, terms: list[Tensor], scores: Tensor | None
    ) -> Tensor:
        """``[g, b]``."""
        normaliser, eps = NORMALISERS[self.p.normaliser], self.p.eps
        den = self.at.fold(den, self.dtype)
        divisor = normaliser.divisor(den, eps)
        g = self.at.fold(g_out, self.dtype).div_(divisor)
        # a rounded output would put its error into every dL/dden
        exact = out.dtype == self.dtype
        rows = self.at.fold(out, self.dtype) if exact else self.rows(terms, scores)[..., :-1].div_(divisor)
        b = rows.mul_(g).sum(-1, keepdim=True).mul_(normaliser.slope(den, eps)).neg_()
        del rows
        return torch.cat([g, b], dim=-1)

    def _query_gradients(self, g: Tensor, terms: list[Tensor], pairs: Tensor | None, into: Tensor) -> None:
        """Fill dq. Takes the terms out of their list, as they are not needed any more."""
        total = None
        for direction in range(len(terms)):
            grad = self._outermost(torch.bmm(g, terms.pop(0).mT), last=direction == 1)
            total = grad if total is None else total.add_(grad)
        assert total is not None  # rows have at least one term
        grad = self.at.rotate_back(total, self.table)
        del total
        if pairs is not None:
            grad.baddbmm_(pairs, self.k)
        self.at.unfold(self._weigh_queries(self._through_relu(grad, self.q)), into)

    def key_gradients(
        self, terms: list[Tensor], dk: Tensor, dv: Tensor, pairs: Tensor | None = None, values: Tensor | None = None
    ) -> None:
        """Fill dk and dv of these keys from the terms of the rows after them and, beside rows, from the pairs:
        ``values`` is what these give to dv."""
        total: Any = None
        for direction, after in enumerate(terms):
            values = _add_product(values, self._key_features(direction), after)
            grad = self._outermost(torch.bmm(self.v, after.mT), last=direction == 0)
            total = grad if total is None else total.add_(grad)
        assert values is not None  # keys have at least one term
        self.at.unfold(values[..., :-1], dv)
        grad = self.at.rotate_back(total, self.table)
        del total
        if pairs is not None:
            grad.baddbmm_(pairs.mT, self.q)
        self.at.unfold(self._weigh_keys(self._through_relu(grad, self.k)), dk)
        if self.hidden is not None and not self.p.relu:
            dk.masked_fill_(self.hidden, 0)

    def leading_gradients(self, dstate: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """Fill dk and dv of keys alone; from the gradient of the state after them to that of the state before."""
        each = dstate.expand(self.at.count, *dstate.shape)
        each = each if self.decay is None else self.decay.to_end(each)
        self.key_gradients([each.flatten(0, 1)], dk, dv)
        return dstate if self.decay is None else self.decay.fade(dstate, self.at.positions)

    def _through_relu(self, grad: Tensor, x: Tensor) -> Tensor:
        return torch.ops.aten.threshold_backward(grad, x, 0) if self.p.relu else grad


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """``total + a b``, in place; the product where there is no total yet."""
    return torch.bmm(a, b) if total is None else total.baddbmm_(a, b)
