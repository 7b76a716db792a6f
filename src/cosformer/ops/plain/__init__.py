"""The linear form in plain PyTorch, for every device and dtype: all chunks of a segment at once, in a few dozen
operations.

Every chunk's state is one product of a batch, what came before a chunk is a running sum over those states, and inside
the chunks a D-wide product is weighted by one cosine matrix. Longer sequences go through in segments with a carried
state, so that temporaries stay bounded: on a CPU short ones of a few heads, which stay in its caches; on other devices
long ones of all heads, because starting an operation there costs more than a chunk's arithmetic.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from cosformer.ops.checks import without_autocast
from cosformer.ops.plain.segment import Segment
from cosformer.ops.plain.stack import packed_groups
from cosformer.ops.spec import Call, accumulator, new_output

SEGMENT = 65_536  # positions computed at once
CPU_SEGMENT = 1_024  # on a CPU, where each holds
CPU_ROWS = 2_048  # at most so many rows (positions times query heads) where heads can be split
CHUNK = 128
REACH = 64.0  # rate times rows of a chunk: factors of decay stay within exp(-32) and exp(32)


def forward(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``out [B,H,N,E]``, row sums ``den [B,H,N]``, and the state ``kv [B,Hk,F,E]``, ``z [B,Hk,F]`` after the keys."""
    q, v = call.q, call.v
    out, den = new_output(q, v), q.new_empty(*q.shape[:3], 1, dtype=accumulator(q.dtype))
    state = _join(call, call.kv, call.z)
    with without_autocast(q.device):
        chunk, segment = _lengths(call)
        for batch, heads, rows in _blocks(call):
            part = _Part(_select(call, batch, heads, rows), chunk, segment)
            end = part.forward(state[batch, heads].flatten(0, 1), out[batch, rows], den[batch, rows])
            # without keys it is still the part of `state` it began as
            state[batch, heads] = end.unflatten(0, state[batch, heads].shape[:2]).clone()
    return out, den.squeeze(-1), *_split(state)


def backward(
    call: Call, g_out: Tensor, g_kv: Tensor, g_z: Tensor, out: Tensor, den: Tensor, kv_next: Tensor, z_next: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the incoming state (where none came in: of a state of zeros)."""
    dq, dk, dv = (torch.empty_like(x) for x in call[:3])
    first, last, dstate = _join(call, call.kv, call.z), _join(call, kv_next, z_next), _join(call, g_kv, g_z)
    with without_autocast(call.q.device):
        chunk, segment = _lengths(call)
        for batch, heads, rows in _blocks(call):
            part = _Part(_select(call, batch, heads, rows), chunk, segment)
            states = [x[batch, heads].flatten(0, 1) for x in (first, last, dstate)]
            of_rows = [x[batch, rows] for x in (g_out, out, den[..., None], dq)]
            start = part.backward(states, of_rows, dk[batch, heads], dv[batch, heads])
            dstate[batch, heads] = start.unflatten(0, dstate[batch, heads].shape[:2]).clone()
    return dq, dk, dv, *_split(dstate)


class _Part:
    """The heads of a call that are computed at once, segment by segment. States are ``[B*Hk, F, E+1]``, kv beside z."""

    def __init__(self, call: Call, chunk: int, segment: int) -> None:
        self.call, self.chunk, self.segment = call, chunk, segment
        # keys that every row of this call sees as a state: all of them, or those before the first causal query
        self.lead = call.k.shape[2] - (call.q.shape[2] if call.spec.causal else 0)

    def forward(self, state: Tensor, out: Tensor, den: Tensor) -> Tensor:
        """Fill ``out`` and ``den``; the state after the keys (of packed sequences: zeros)."""
        if self.call.cu_seqlens is None:
            for at in self._spans(0, self.lead):
                state = self._keys(at).state_after(state)
        for at, part in self._rows():
            terms, state = part.key_sums(state)
            part.finish_rows(part.rows(terms), out[:, :, at], den[:, :, at])
            del part, terms  # before the next segment takes its place
        return state if self.call.cu_seqlens is None else torch.zeros_like(state)

    def backward(self, states: list[Tensor], of_rows: list[Tensor], dk: Tensor, dv: Tensor) -> Tensor:
        """Fill dq (the last ``of_rows``: g_out, out, den, dq), dk and dv. ``states``: the first, the last and the last
        one's gradient; returns the first one's."""
        first, last, dstate = states
        causal, packed = self.call.spec.causal, self.call.cu_seqlens is not None
        # without causality every row saw the last state
        starts = self._starts(first) if causal and not packed else []
        shift = self.lead if causal else 0
        for at, part in self._rows(last_first=True):
            state = first if packed else starts.pop() if causal else last
            keys = slice(at.start + shift, at.stop + shift) if part.pairs else slice(0, 0)
            here = [x[:, :, at] for x in of_rows]
            dstate = part.gradients(state, dstate, here, dk[:, :, keys], dv[:, :, keys])
            del part  # before the next segment takes its place
        if packed:
            return torch.zeros_like(dstate)
        for at in self._spans(0, self.lead)[::-1]:
            dstate = self._keys(at).leading_gradients(dstate, dk[:, :, at], dv[:, :, at])
        return dstate

    def _starts(self, state: Tensor) -> list[Tensor]:
        """The state before each causal segment, recomputed: subtracting keys again would lose precision."""
        for at in self._spans(0, self.lead):
            state = self._keys(at).state_after(state)
        states = [state]
        for at in self._spans(self.lead, self.call.k.shape[2])[:-1]:
            states.append(self._keys(at).state_after(states[-1]))
        return states

    def _spans(self, start: int, end: int) -> list[slice]:
        return [slice(a, min(a + self.segment, end)) for a in range(start, end, self.segment)]

    def _rows(self, *, last_first: bool = False) -> Iterator[tuple[slice, Segment]]:
        """The rows segment by segment, with the keys beside them where the call is causal or packed."""
        n, first = self.call.q.shape[2], int(self.call.spec.q_first)
        if self.call.cu_seqlens is not None:
            for at, lengths in packed_groups(self.call.cu_seqlens, self.segment):
                yield at, self._make(at, at, 0, lengths)
            return
        for at in self._spans(0, n)[:: -1 if last_first else 1]:
            keys = slice(at.start + self.lead, at.stop + self.lead) if self.call.spec.causal else slice(0, 0)
            yield at, self._make(at, keys, first + at.start)

    def _keys(self, at: slice) -> Segment:
        return self._make(slice(0, 0), at, int(self.call.spec.k_first) + at.start)

    def _make(self, rows: slice, keys: slice, first: int, lengths: list[int] | None = None) -> Segment:
        q, k, v, _, _, mask, _, decay, p = self.call
        hidden = None if mask is None else ~mask[:, None, keys, None]
        tensors = q[:, :, rows], k[:, :, keys], v[:, :, keys], hidden
        return Segment(*tensors, first, self.chunk, decay, p, lengths)


def _lengths(call: Call) -> tuple[int, int]:
    """Of chunks, and of segments."""
    segment = CPU_SEGMENT if call.q.device.type == "cpu" else SEGMENT
    chunk = max(CHUNK, call.q.shape[3])  # never below D, so that the chunk states stay O(N E)
    if call.decay is None or call.decay.is_meta:
        return chunk, segment
    fastest, least = float(call.decay.max()), chunk
    while chunk > 1 and fastest * chunk > REACH:
        chunk //= 2
    return chunk, max(segment * chunk // least, chunk)  # shorter chunks have more states


def _blocks(call: Call) -> Iterator[tuple[slice, slice, slice]]:
    """What is computed at once: batch items, their key heads, and their query heads."""
    (batch, heads, n, _), key_heads = call.q.shape, call.k.shape[1]
    groups, at_once = heads // key_heads, batch * key_heads
    if call.q.device.type == "cpu":
        at_once = max(1, CPU_ROWS // (groups * max(1, min(max(n, call.k.shape[2]), CPU_SEGMENT))))
    items, some = max(1, at_once // key_heads), min(at_once, key_heads)
    for b in range(0, batch, items):
        for h in range(0, key_heads, some):
            yield slice(b, b + items), slice(h, h + some), slice(h * groups, (h + some) * groups)


def _select(call: Call, batch: slice, heads: slice, rows: slice) -> Call:
    q, k, v, _, _, mask, _, decay, _ = call
    mask = None if mask is None else mask[batch]
    decay = None if decay is None else decay[heads]
    return call._replace(q=q[batch, rows], k=k[batch, heads], v=v[batch, heads], key_mask=mask, decay=decay)


def _join(call: Call, kv: Tensor | None, z: Tensor | None) -> Tensor:
    """A state as one new tensor ``[B,Hk,F,E+1]``, zeros where there is none."""
    if kv is not None and z is not None:
        return torch.cat([kv, z[..., None]], dim=-1)
    (batch, heads, _, d), e = call.k.shape, call.v.shape[3]
    return call.k.new_zeros(batch, heads, d * (2 if call.spec.k_len else 1), e + 1, dtype=accumulator(call.k.dtype))


def _split(state: Tensor) -> tuple[Tensor, Tensor]:
    kv, z = state[..., :-1], state[..., -1]
    return kv.clone(memory_format=torch.contiguous_format), z.clone(memory_format=torch.contiguous_format)
