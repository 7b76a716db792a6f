"""The batched form in plain PyTorch: all chunks of a sequence at once, a few dozen operations whatever the length.

Every chunk's state is one product of a batch, what came before a chunk is a running sum over those states, and inside the
chunks a D-wide product is weighted by one cosine matrix. For devices where starting an operation costs more than a chunk's
arithmetic. Longer sequences go through in segments with a carried state, so that temporaries stay bounded.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.checks import without_autocast
from cosformer.ops.chunks import (
    Packing,
    Stack,
    angle_table,
    packed_groups,
    pair_weights,
    rotate,
    rotate_back,
    running_sums,
    stack_of,
)
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import AttentionSpec, Call, accumulator, new_output

SEGMENT = 65_536  # positions worked on at once


def chunk_length(head_dim: int) -> int:
    """Never below D, so that the chunk states stay O(N E)."""
    return max(128, head_dim)


def forward(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``out [B,H,N,E]``, row sums ``den [B,H,N]``, and the state ``kv [B,Hk,F,E]``, ``z [B,Hk,F]`` after the keys."""
    q, k, v, kv, z, key_mask, cu_seqlens, _, p = call
    out, den = new_output(q, v), q.new_empty(*q.shape[:3], 1, dtype=accumulator(q.dtype))
    kv, z = _state(k, v, kv, z, p)
    with without_autocast(q.device):
        if cu_seqlens is not None:
            for piece, span in _packed_segments(q, k, v, cu_seqlens, p):
                piece.finish_rows(*piece.rows(piece.key_sums(kv, z)[0]), out[:, :, span], den[:, :, span])
                del piece
        else:
            hidden = _hidden(key_mask)
            kv, z = _absorb_leading(q, k, v, hidden, kv, z, p)
            for piece, span in _segments(q, k, v, hidden, p):
                terms, kv, z = piece.key_sums(kv, z)
                piece.finish_rows(*piece.rows(terms), out[:, :, span], den[:, :, span])
                del piece, terms  # before the next segment takes its place
    shape = k.shape[:2]
    return out, den.squeeze(-1), kv.unflatten(0, shape).clone(), z.unflatten(0, shape).clone()


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
    first = _state(k, v, kv, z, p)
    dkv, dz = g_kv.flatten(0, 1), g_z.flatten(0, 1)
    rows = (g_out, out, den[..., None], dq)
    with without_autocast(q.device):
        if cu_seqlens is not None:
            for piece, span in _packed_segments(q, k, v, cu_seqlens, p):
                piece.gradients(*first, dkv, dz, *(x[:, :, span] for x in (*rows, dk, dv)))
                del piece
            return dq, dk, dv, torch.zeros_like(g_kv), torch.zeros_like(g_z)
        hidden = _hidden(key_mask)
        starts = _starts(q, k, v, hidden, first, p) if p.causal else []
        last = kv_next.flatten(0, 1), z_next.flatten(0, 1)  # what every row saw without causality
        for piece, span in _segments(q, k, v, hidden, p, last_first=True):
            start = starts.pop() if p.causal else last
            keys = slice(span.start + k.shape[2] - q.shape[2], span.stop + k.shape[2] - q.shape[2])
            key_gradients = [x[:, :, keys] if p.causal else x[:, :, :0] for x in (dk, dv)]
            dkv, dz = piece.gradients(*start, dkv, dz, *(x[:, :, span] for x in rows), *key_gradients)
            del piece  # before the next segment takes its place
        for piece, span in _leading_keys(q, k, v, hidden, p):
            piece.key_gradients([(dkv, dz)], dk[:, :, span], dv[:, :, span])
    return dq, dk, dv, dkv.view_as(g_kv).clone(), dz.view_as(g_z).clone()


class _Segment:
    """A stretch of rows with the keys beside them (causal, packed), rows alone, or keys alone, as stacks of chunks.

    Rows of a chunk see its keys in pairs, and the keys of other chunks as terms: the sum of keys times values, and the sum of
    keys. Features are made where they are used and scores given up as soon as they can be, because each is twice as large as
    the queries.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hidden: Tensor | None,
        first: int,
        p: AttentionSpec,
        lengths: list[int] | None = None,
    ) -> None:
        self.p, self.hidden, self.dtype, self.device = p, hidden, accumulator(q.dtype), q.device
        positions, in_chunks = max(q.shape[2], k.shape[2]), k.shape[2] > 0
        self.at = stack_of(q, k, positions, chunk_length(q.shape[3]) if in_chunks else positions)
        self.packing = None if lengths is None else Packing(lengths, self.at, q.device)
        length = p.k_len if in_chunks else p.q_len
        if self.packing is None:
            self.table = angle_table(first, self.at, length, self.dtype, q.device)
        else:
            self.table = self.packing.table(length, self.dtype, q.device)
        self.pairs = in_chunks and q.shape[2] > 0
        # packed sequences that are not causal see sums of the chunks before, and of those after
        self.directions = 1 if self.packing is None or p.causal else 2
        if q.shape[2]:
            self.q = self.at.fold(q, self.dtype, relu=p.relu)
        if in_chunks:
            self.k = self.at.fold(k, self.dtype, relu=p.relu, hidden=hidden)
            # masked values too: zero times NaN is NaN
            self.v = self.at.fold(v, self.dtype, hidden=hidden)

    def row_features(self, direction: int = 0) -> Tensor:
        """The queries' features; packed: of those that see the chunks before (1: after) theirs."""
        return self._outermost(rotate(self.q, self.table, self.at), last=direction == 1)

    def key_features(self, direction: int = 0) -> Tensor:
        """The keys' features; packed: of those that chunks after (1: before) theirs see."""
        return self._outermost(rotate(self.k, self.table, self.at), last=direction == 0)

    def _outermost(self, stack: Tensor, *, last: bool) -> Tensor:
        return stack if self.packing is None else self.packing.outermost(stack, last=last)

    def key_sums(self, kv: Tensor, z: Tensor) -> tuple[list[Any], Tensor, Tensor]:
        """The terms of the rows, one for each direction, and the state after this segment's keys."""
        if not self.pairs:
            return [(kv, z)], kv, z
        if self.packing is None:
            features = self.key_features()
            before, kv = running_sums(self.at.by_chunk(torch.bmm(features.mT, self.v)), kv)
            z_before, z = running_sums(self.at.by_chunk(features.sum(1)), z)
            return [(before.flatten(0, 1), z_before.flatten(0, 1))], kv, z
        terms = []
        for direction in range(self.directions):
            features = self.key_features(direction)
            sums = [self.at.by_chunk(x) for x in (torch.bmm(features.mT, self.v), features.sum(1))]
            terms.append([self.packing.running_sums(x, reverse=direction == 1).flatten(0, 1) for x in sums])
        return terms, kv, z

    def row_sums(self, g: Tensor, b: Tensor, dkv: Tensor, dz: Tensor) -> tuple[list[Any], Tensor, Tensor]:
        """The mirror of :meth:`key_sums`: what the keys see of the rows, and the gradient of the state before them."""
        if self.pairs and self.packing is not None:
            terms = []
            for direction in range(self.directions):
                features = self.row_features(direction)
                sums = [self.at.by_chunk(torch.bmm(features.mT, x)) for x in (g, b)]
                after, z_after = (self.packing.running_sums(x, reverse=direction == 0).flatten(0, 1) for x in sums)
                terms.append((after, z_after.squeeze(-1)))
            return terms, dkv, dz
        features = self.row_features()
        if not self.pairs:
            return [], dkv.baddbmm(features.mT, g), dz + torch.bmm(features.mT, b).squeeze(-1)
        z_after, dz = running_sums(self.at.by_chunk(torch.bmm(features.mT, b).squeeze(-1)), dz, reverse=True)
        after, dkv = running_sums(self.at.by_chunk(torch.bmm(features.mT, g)), dkv, reverse=True)
        return [(after.flatten(0, 1), z_after.flatten(0, 1))], dkv, dz

    def scores(self) -> Tensor:
        """``(q' k'^T) * weight`` of the pairs inside each chunk, ``[n*B*Hk, G*C, C]``."""
        return self._weigh(torch.bmm(self.q, self.k.mT))

    def _weigh(self, scores: Tensor) -> Tensor:
        p, by_position = self.p, self.at.by_position(scores)
        by_position.mul_(pair_weights(self.at.length, p.causal, p.q_len, self.dtype, self.device))
        if self.packing is not None:
            by_position.masked_fill_(self.packing.foreign, 0)
        return scores

    def rows(self, terms: list[Any], scores: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Numerators ``[., ., E]`` and row sums ``[., ., 1]``."""
        num = den = None
        for direction, (before, z_before) in enumerate(terms):
            features = self.row_features(direction)
            num = _add_product(num, features, before)
            den = _add_product(den, features, z_before[..., None])
            del features
        assert num is not None and den is not None  # rows have at least one term
        if self.pairs:
            scores = self.scores() if scores is None else scores
            num.baddbmm_(scores, self.v)
            den += scores.sum(-1, keepdim=True)
        return num, den

    def finish_rows(self, num: Tensor, den: Tensor, out: Tensor, den_out: Tensor) -> None:
        self.at.unfold(num.div_(NORMALISERS[self.p.normaliser].divisor(den, self.p.eps)), out)
        self.at.unfold(den, den_out)

    def gradients(
        self,
        kv: Tensor,
        z: Tensor,
        dkv: Tensor,
        dz: Tensor,
        g_out: Tensor,
        out: Tensor,
        den: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Fill ``dq, dk, dv``; from the gradient of the state behind this segment to that of the state before it."""
        terms, _, _ = self.key_sums(kv, z)
        scores = self.scores() if self.pairs else None
        g, b = self._gradients_of_sums(g_out, out, den, terms, scores)
        values = None if scores is None else torch.bmm(scores.mT, g)
        del scores
        seen, dkv, dz = self.row_sums(g, b, dkv, dz)
        pairs = self._weigh(torch.bmm(g, self.v.mT).add_(b)) if self.pairs else None
        self._query_gradients(g, b, terms, pairs, dq)
        if self.pairs:
            self.key_gradients(seen, dk, dv, pairs, values)
        return dkv, dz

    def _gradients_of_sums(
        self, g_out: Tensor, out: Tensor, den: Tensor, terms: list[Any], scores: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """g = dL/dnum and b = dL/dden."""
        normaliser, eps = NORMALISERS[self.p.normaliser], self.p.eps
        den = self.at.fold(den, self.dtype)
        divisor = normaliser.divisor(den, eps)
        g = self.at.fold(g_out, self.dtype).div_(divisor)
        # a rounded output would put its error into every dL/dden
        exact = out.dtype == self.dtype
        rows = self.at.fold(out, self.dtype) if exact else self.rows(terms, scores)[0].div_(divisor)
        return g, rows.mul_(g).sum(-1, keepdim=True).mul_(normaliser.slope(den, eps)).neg_()

    def _query_gradients(self, g: Tensor, b: Tensor, terms: list[Any], pairs: Tensor | None, into: Tensor) -> None:
        """Fill dq. Takes the terms out of their list, as they are not needed any more."""
        total = None
        for direction in range(len(terms)):
            before, z_before = terms.pop(0)
            grad = torch.bmm(g, before.mT).addcmul_(b, z_before[:, None, :])
            del before
            grad = self._outermost(grad, last=direction == 1)
            total = grad if total is None else total.add_(grad)
        assert total is not None  # rows have at least one term
        grad = rotate_back(total, self.table, self.at)
        del total
        if pairs is not None:
            grad.baddbmm_(pairs, self.k)
        self.at.unfold(_through_relu(grad, self.q, self.p), into)

    def key_gradients(
        self, terms: list[Any], dk: Tensor, dv: Tensor, pairs: Tensor | None = None, values: Tensor | None = None
    ) -> None:
        """Fill dk and dv of these keys from the terms of :meth:`row_sums` and, beside rows, from the pairs: ``values`` is what
        these give to dv."""
        total = None
        for direction, (after, z_after) in enumerate(terms):
            features = self.key_features(direction)
            if after.shape[0] != features.shape[0]:  # keys alone: every chunk has the same term
                after, z_after = (_for_each_chunk(x, self.at) for x in (after, z_after))
            values = _add_product(values, features, after)
            del features
            grad = self._outermost(torch.bmm(self.v, after.mT).add_(z_after[:, None, :]), last=direction == 0)
            total = grad if total is None else total.add_(grad)
        assert total is not None and values is not None  # keys have at least one term
        self.at.unfold(values, dv)
        grad = rotate_back(total, self.table, self.at)
        del total
        if pairs is not None:
            grad.baddbmm_(pairs.mT, self.q)
        self.at.unfold(_through_relu(grad, self.k, self.p), dk)
        if self.hidden is not None and not self.p.relu:
            dk.masked_fill_(self.hidden, 0)


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """``total + a b``, in place; the product where there is no total yet."""
    return torch.bmm(a, b) if total is None else total.baddbmm_(a, b)


def _through_relu(grad: Tensor, x: Tensor, p: AttentionSpec) -> Tensor:
    return torch.ops.aten.threshold_backward(grad, x, 0) if p.relu else grad


def _for_each_chunk(x: Tensor, at: Stack) -> Tensor:
    return x.expand(at.count, *x.shape).flatten(0, 1)


def _hidden(key_mask: Tensor | None) -> Tensor | None:
    return None if key_mask is None else ~key_mask[:, None, :, None]


def _state(k: Tensor, v: Tensor, kv: Tensor | None, z: Tensor | None, p: AttentionSpec) -> tuple[Tensor, Tensor]:
    """The incoming state with heads folded into the batch; zeros where none came in."""
    if kv is not None and z is not None:
        return kv.flatten(0, 1), z.flatten(0, 1)
    heads, features = k.shape[0] * k.shape[1], k.shape[3] * (2 if p.k_len else 1)
    dtype = accumulator(k.dtype)
    return k.new_zeros(heads, features, v.shape[3], dtype=dtype), k.new_zeros(heads, features, dtype=dtype)


def _spans(start: int, end: int) -> list[slice]:
    return [slice(a, min(a + SEGMENT, end)) for a in range(start, end, SEGMENT)]


def _segments(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, p: AttentionSpec, *, last_first: bool = False
) -> Iterator[tuple[_Segment, slice]]:
    """The rows segment by segment, with the keys beside them where the call is causal."""
    lead = k.shape[2] - q.shape[2]
    for span in _spans(0, q.shape[2])[:: -1 if last_first else 1]:
        keys = slice(span.start + lead, span.stop + lead) if p.causal else slice(0, 0)
        here = None if hidden is None else hidden[:, :, keys]
        yield _Segment(q[:, :, span], k[:, :, keys], v[:, :, keys], here, int(p.q_first) + span.start, p), span


def _packed_segments(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, p: AttentionSpec
) -> Iterator[tuple[_Segment, slice]]:
    for span, lengths in packed_groups(cu_seqlens, SEGMENT):
        yield _Segment(q[:, :, span], k[:, :, span], v[:, :, span], None, 0, p, lengths), span


def _leading_keys(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, p: AttentionSpec
) -> Iterator[tuple[_Segment, slice]]:
    """Keys that every row of this call sees as a state: all of them, or those before the first causal query."""
    for span in _spans(0, k.shape[2] - q.shape[2] if p.causal else k.shape[2]):
        here = None if hidden is None else hidden[:, :, span]
        yield _Segment(q[:, :, :0], k[:, :, span], v[:, :, span], here, int(p.k_first) + span.start, p), span


def _absorb_leading(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, kv: Tensor, z: Tensor, p: AttentionSpec
) -> tuple[Tensor, Tensor]:
    for piece, _ in _leading_keys(q, k, v, hidden, p):
        features = piece.key_features()
        kv = kv + piece.at.by_chunk(torch.bmm(features.mT, piece.v)).sum(0)
        z = z + piece.at.by_chunk(features.sum(1)).sum(0)
    return kv, z


def _starts(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, first: tuple[Tensor, Tensor], p: AttentionSpec
) -> list[tuple[Tensor, Tensor]]:
    """The state before each causal segment: recomputed forwards, because subtracting keys again would lose digits."""
    starts = [_absorb_leading(q, k, v, hidden, *first, p)]
    lead = k.shape[2] - q.shape[2]
    for span in _spans(lead, k.shape[2])[:-1]:
        here = None if hidden is None else hidden[:, :, span]
        beside = p._replace(causal=False, k_first=int(p.k_first) + span.start)
        starts.append(_absorb_leading(q, k[:, :, span], v[:, :, span], here, *starts[-1], beside))
    return starts
