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
from cosformer.ops.spec import AttentionSpec, accumulator, new_output

SEGMENT = 65_536  # positions worked on at once


def chunk_length(head_dim: int) -> int:
    """Never below D, so that the chunk states stay O(N E)."""
    return max(128, head_dim)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor | None,
    z: Tensor | None,
    key_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    p: AttentionSpec,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``out [B,H,N,E]``, row sums ``den [B,H,N]``, and the state ``kv [B,Hk,F,E]``, ``z [B,Hk,F]`` after the keys."""
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
    kv_next: Tensor,
    z_next: Tensor,
    p: AttentionSpec,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the incoming state (where none came in: of a state of zeros)."""
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
            piece.key_gradients([(dkv, dz, piece.fk)], dk[:, :, span], dv[:, :, span])
    return dq, dk, dv, dkv.view_as(g_kv).clone(), dz.view_as(g_z).clone()


class _Segment:
    """A stretch of rows with the keys beside them (causal, packed), rows alone, or keys alone, as stacks of chunks.

    Rows of a chunk see its keys in pairs, and the keys of other chunks as sums. Such sums are called terms: the features
    whose rows see them, the sum of keys times values, the sum of keys.
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
        if q.shape[2]:
            self.q = self.at.fold(q, self.dtype, relu=p.relu)
            self.fq = rotate(self.q, self.table, self.at)
        if in_chunks:
            self.k = self.at.fold(k, self.dtype, relu=p.relu, hidden=hidden)
            # masked values too: zero times NaN is NaN
            self.v = self.at.fold(v, self.dtype, hidden=hidden)
            self.fk = rotate(self.k, self.table, self.at)

    def key_sums(self, kv: Tensor, z: Tensor) -> tuple[list[Any], Tensor, Tensor]:
        """The terms of the rows, and the state after this segment's keys."""
        if not self.pairs:
            return [(self.fq, kv, z)], kv, z
        if self.packing is None:
            before, kv = running_sums(self.at.by_chunk(torch.bmm(self.fk.mT, self.v)), kv)
            z_before, z = running_sums(self.at.by_chunk(self.fk.sum(1)), z)
            return [(self.fq, before.flatten(0, 1), z_before.flatten(0, 1))], kv, z
        terms = []
        for reverse in (False,) if self.p.causal else (False, True):
            seen = self.packing.outermost(self.fk, last=not reverse)
            sums = [self.at.by_chunk(x) for x in (torch.bmm(seen.mT, self.v), seen.sum(1))]
            before = [self.packing.running_sums(x, reverse=reverse).flatten(0, 1) for x in sums]
            terms.append((self.packing.outermost(self.fq, last=reverse), *before))
        return terms, kv, z

    def row_sums(self, g: Tensor, b: Tensor, dkv: Tensor, dz: Tensor) -> tuple[list[Any], Tensor, Tensor]:
        """The mirror of :meth:`key_sums`: what the keys see of the rows, and the gradient of the state before them."""
        if not self.pairs:
            return [], dkv.baddbmm(self.fq.mT, g), dz + torch.bmm(self.fq.mT, b).squeeze(-1)
        if self.packing is None:
            after, dkv = running_sums(self.at.by_chunk(torch.bmm(self.fq.mT, g)), dkv, reverse=True)
            z_after, dz = running_sums(self.at.by_chunk(torch.bmm(self.fq.mT, b).squeeze(-1)), dz, reverse=True)
            return [(after.flatten(0, 1), z_after.flatten(0, 1), self.fk)], dkv, dz
        terms = []
        for reverse in (True,) if self.p.causal else (True, False):
            seeing = self.packing.outermost(self.fq, last=not reverse)
            sums = [self.at.by_chunk(torch.bmm(seeing.mT, x)) for x in (g, b)]
            after, z_after = (self.packing.running_sums(x, reverse=reverse).flatten(0, 1) for x in sums)
            terms.append((after, z_after.squeeze(-1), self.packing.outermost(self.fk, last=reverse)))
        return terms, dkv, dz

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
        features, before, z_before = terms[0]
        num, den = torch.bmm(features, before), torch.bmm(features, z_before[..., None])
        for features, before, z_before in terms[1:]:
            num.baddbmm_(features, before)
            den.baddbmm_(features, z_before[..., None])
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
        pairs = None
        if self.pairs:
            pairs = self._weigh(torch.bmm(g, self.v.mT).add_(b))
        self._query_gradients(g, b, terms, pairs, dq)
        del terms
        seen, dkv, dz = self.row_sums(g, b, dkv, dz)
        if self.pairs:
            self.key_gradients(seen, dk, dv, scores, pairs, g)
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
        total = None
        for i, (_, before, z_before) in enumerate(terms):
            grad = torch.bmm(g, before.mT).addcmul_(b, z_before[:, None, :])
            if self.packing is not None:
                grad = self.packing.outermost(grad, last=i == 1)
            total = grad if total is None else total.add_(grad)
        assert total is not None  # rows have at least one term
        grad = rotate_back(total, self.table, self.at)
        if pairs is not None:
            grad.baddbmm_(pairs, self.k)
        self.at.unfold(_through_relu(grad, self.q, self.p), into)

    def key_gradients(
        self,
        terms: list[Any],
        dk: Tensor,
        dv: Tensor,
        scores: Tensor | None = None,
        pairs: Tensor | None = None,
        g: Tensor | None = None,
    ) -> None:
        """Fill dk and dv of these keys from the terms of :meth:`row_sums` and, beside rows, from the pairs."""
        total = total_v = None
        for i, (after, z_after, features) in enumerate(terms):
            if after.shape[0] != features.shape[0]:  # keys alone: every chunk has the same term
                after, z_after = (_for_each_chunk(x, self.at) for x in (after, z_after))
            grad = torch.bmm(self.v, after.mT).add_(z_after[:, None, :])
            if self.packing is not None:
                grad = self.packing.outermost(grad, last=i == 0)
            grad_v = torch.bmm(features, after)
            total = grad if total is None else total.add_(grad)
            total_v = grad_v if total_v is None else total_v.add_(grad_v)
        assert total is not None and total_v is not None  # keys have at least one term
        grad = rotate_back(total, self.table, self.at)
        if pairs is not None and scores is not None and g is not None:
            grad.baddbmm_(pairs.mT, self.q)
            total_v.baddbmm_(scores.mT, g)
        self.at.unfold(_through_relu(grad, self.k, self.p), dk)
        if self.hidden is not None and not self.p.relu:
            dk.masked_fill_(self.hidden, 0)
        self.at.unfold(total_v, dv)


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
        kv = kv + piece.at.by_chunk(torch.bmm(piece.fk.mT, piece.v)).sum(0)
        z = z + piece.at.by_chunk(piece.fk.sum(1)).sum(0)
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
