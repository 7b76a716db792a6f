"""Sequence parallelism: each process of a group holds a contiguous shard of one sequence and gets the rows of its
shard.

Angles are absolute, so the state of a whole sequence is the plain sum of its shards' states. Every rank sums up its own
keys, one all-gather hands those sums round, and each rank starts from the sum of the shards that its queries see: those
before it, or all of them without ``causal``. Backward the same collective carries the gradients of the sums the other
way. What is sent has the size of a state, whatever the length.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives

from cosformer.ops.checks import autocast_enabled, check_bounds
from cosformer.ops.decay import by_feature, fade
from cosformer.ops.dense import hide
from cosformer.ops.dispatch import attend
from cosformer.ops.normaliser import NORMALISERS
from cosformer.ops.spec import AttentionSpec, Call, accumulator
from cosformer.ops.state import LinearState
from cosformer.ops.torch_ops import needs_gradients

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# the name of torch 2.13 and later, which warn of the other
_all_gather = getattr(collectives, "all_gather_single", collectives.all_gather_tensor)
_SEEDS = 2**31  # what a rank draws a seed below
# what every rank tells the others before a call; all but the first three must be equal
_FACTS = ("queries", "keys", "seed", "max_len", "causal", "dtype", "batch", "heads", "key_heads", "channels")
_FACTS += ("value_channels", "gradients", "autocast", "eps", "cu_seqlens", "decay")


class Shards(NamedTuple):
    """Where the shards lie in the whole, by rank; the same on every rank but for ``rank``."""

    group: Any  # the process group
    rank: int
    q_bounds: tuple[int, ...]  # rank r holds the queries from q_bounds[r] to q_bounds[r + 1]
    k_bounds: tuple[int, ...]
    seed: int  # a number that all ranks share and that differs from call to call

    @property
    def first(self) -> int:
        """The position of this rank's first query."""
        return self.q_bounds[self.rank]


class Segment(NamedTuple):
    """The part of one sequence on a rank: its positions ``start`` to ``end``; ``position`` is the first's index."""

    sequence: int  # -1: of none, and empty
    start: int
    end: int
    position: int


def all_gather_ints(
    group: Any, make_row: Callable[[], Sequence[int]], count: int, device: Any
) -> list[tuple[int, ...]]:
    """Gather the ``count`` integers that ``make_row`` returns on each rank of ``group``, in order of rank.

    ``make_row`` raises if this rank's arguments are wrong. The failure is exchanged before any rank raises, so no rank
    waits for one that has stopped.
    """
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise ValueError(f"group is {group!r}; pass a process group of torch.distributed that this process belongs to")
    error, row = None, [0] * (1 + count)
    try:
        row = [1, *make_row()]
    except Exception as mistake:
        error = mistake
    rows = _exchange(row, group, device)  # pyright: ignore[reportCallIssue]  (the decorator hides its arguments)
    if error is not None:
        raise error
    for rank, (valid, *_) in enumerate(rows):
        if not valid:
            raise ValueError(
                f"rank {rank} of the group rejected its arguments, so rank {dist.get_rank(group)} stops too; its error "
                "says why"
            )
    return [tuple(row) for _, *row in rows]


def agree(group: Any, check: Callable[[], Any], q: Tensor, k: Tensor, v: Tensor, **facts: Any) -> tuple[Shards, Any]:
    """Where the shards lie, and what ``check`` returned: the one exchange of a few integers of a call.

    ``check`` raises on this rank's mistakes. ``facts``: ``causal``, ``max_len``, ``eps``, ``cu_seqlens`` and ``decay``,
    which all ranks must have alike.
    """
    checked = []

    def make_row() -> list[int]:
        checked.append(check())
        return _row(q, k, v, **facts)

    rows = all_gather_ints(group, make_row, len(_FACTS), q.device if isinstance(q, Tensor) else "cpu")
    told = dict(zip(_FACTS, zip(*rows, strict=True), strict=True))
    check_equal({name: told[name] for name in _FACTS[3:]})
    q_bounds, k_bounds = ((0, *accumulate(told[name])) for name in ("queries", "keys"))
    return Shards(group, dist.get_rank(group), q_bounds, k_bounds, told["seed"][0]), checked[0]


def check_equal(told: dict[str, tuple[int, ...]]) -> None:
    """Raise, on every rank alike, where ranks have told different numbers."""
    for name, values in told.items():
        if len(set(values)) > 1:
            raise ValueError(
                f"{name} differs between the ranks of the group: {_shown(name, values)}; they must be equal"
            )


def _row(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    max_len: int,
    eps: float = 0.0,
    cu_seqlens: Tensor | None = None,
    decay: Tensor | None = None,
) -> list[int]:
    n, s = q.shape[2], k.shape[2]
    if causal and n != s:
        raise ValueError(f"a causal shard needs as many keys as queries, got N={n} and S={s}")
    bounds, rates = (0 if x is None else 1 + zlib.crc32(repr(x.tolist()).encode()) for x in (cu_seqlens, decay))
    seed = int(torch.randint(_SEEDS, ()))
    sizes = (q.shape[0], q.shape[1], k.shape[1], q.shape[3], v.shape[3])
    autocast = _DTYPES.index(torch.get_autocast_dtype(q.device.type)) + 1 if autocast_enabled(q.device) else 0
    (bits,) = struct.unpack("<q", struct.pack("<d", eps))
    settings = (int(needs_gradients(k, v)), autocast, bits, bounds, rates)
    return [n, s, seed, max_len, int(causal), _DTYPES.index(q.dtype), *sizes, *settings]


@torch.compiler.disable
def _exchange(row: list[int], group: Any, device: Any) -> list[list[int]]:
    """Every rank's ``row``, by rank."""
    # gloo takes tensors of the CPU, and then no GPU has to be waited for
    if "gloo" in dist.get_backend(group):
        device = "cpu"
    mine = torch.tensor(row, dtype=torch.int64, device=device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return torch.stack(every).tolist()


def _shown(name: str, values: Sequence[int]) -> str:
    if name == "cu_seqlens":
        return "not the same numbers; pass the bounds of the whole sequence on every rank"
    if name == "decay":
        return "not the same numbers; pass the same rates on every rank"
    word = {
        "dtype": lambda value: str(_DTYPES[value]),
        "autocast": lambda value: str(_DTYPES[value - 1]) if value else "off",
        "eps": lambda value: str(struct.unpack("<d", struct.pack("<q", value))[0]),
    }.get(name, str)
    return ", ".join(f"{word(value)} on rank {rank}" for rank, value in enumerate(values))


def attend_shards(call: Call, shards: Shards, *, max_len: int, backend: str) -> Tensor:
    """The rows ``out [B,H,n,E]`` of this rank's queries; one collective forward, one backward.

    The specification is that of a whole sequence from position 0; ``cu_seqlens`` are bounds of packed sequences in the
    whole. A rank exchanges the states of the sequences that cross its borders and computes those that it holds entirely
    as packed ones.
    """
    total, cu_seqlens = max(shards.q_bounds[-1], shards.k_bounds[-1]), call.cu_seqlens
    if cu_seqlens is not None:
        check_bounds(cu_seqlens, total, max_len)
    elif max_len and total > max_len:
        raise ValueError(
            f"the shards have {total} tokens in total, which exceeds max_len={max_len}, past which weights turn "
            "negative; use a larger max_len"
        )
    bounds = (0, total) if cu_seqlens is None else tuple(cu_seqlens.tolist())
    compute: Any = partial(attend, max_len=max_len, backend=backend)
    if call.decay is None or call.spec.causal:
        return _attend_sweeps([_Sweep(call, shards.rank, shards.q_bounds, shards.k_bounds, bounds)], shards, compute)[0]
    # half of the channels look left and half look right; the last column of the values gives the row sums
    spec, wide = call.spec, [x.to(accumulator(x.dtype)) for x in call[:3]]
    q, k, v = wide[0], wide[1], torch.nn.functional.pad(hide(wide[2], call.key_mask), (0, 1), value=1.0)
    both, half = call._replace(spec=spec._replace(causal=True, normaliser="none")), q.shape[3] // 2
    left = both._replace(q=q[..., :half], k=k[..., :half], v=v, decay=call.decay[:, :half])
    q, k, v = q[..., half:].flip(2), k[..., half:].flip(2), v.flip(2)
    mask = None if call.key_mask is None else call.key_mask.flip(1)
    right = both._replace(q=q, k=k, v=v, key_mask=mask, decay=call.decay[:, half:])
    flipped = (tuple(total - x for x in reversed(ends)) for ends in (shards.q_bounds, shards.k_bounds, bounds))
    sweeps = [
        _Sweep(left, shards.rank, shards.q_bounds, shards.k_bounds, bounds),
        _Sweep(right, len(shards.q_bounds) - 2 - shards.rank, *flipped, flipped=True),
    ]
    rows = _attend_sweeps(sweeps, shards, compute)
    num, den = (rows[0] + rows[1].flip(2)).split((call.v.shape[3], 1), dim=-1)
    return (num / NORMALISERS[spec.normaliser].divisor(den, spec.eps)).to(call.v.dtype)


class _Sweep(NamedTuple):
    """A call over the whole sequence from one end to the other, and where this rank and the sequences lie in it."""

    call: Call
    rank: int  # counted from the end where the sweep begins
    q_bounds: tuple[int, ...]
    k_bounds: tuple[int, ...]
    bounds: tuple[int, ...]  # of the packed sequences
    flipped: bool = False

    def exchanged(self, rank: int, *, takes: bool) -> list[Segment]:
        """The segments of a rank, in the group's numbering, whose sums it receives from or sends to others."""
        held = _segments(self.q_bounds if takes else self.k_bounds, self.place(rank), self.bounds)
        segments = _exchanged(held, self.call.spec.causal, 0 if takes else -1)
        # one sequence: what a rank holds of it both begins and ends its shard
        return segments[:1] if len(self.bounds) == 2 else segments

    def place(self, rank: int) -> int:
        return len(self.q_bounds) - 2 - rank if self.flipped else rank


def _attend_sweeps(sweeps: list[_Sweep], shards: Shards, compute: Any) -> list[Tensor]:
    """This rank's rows of each sweep; the sums of all sweeps go round in one collective."""
    ranks = range(len(shards.q_bounds) - 1)
    takes = [[sweep.exchanged(rank, takes=True) for sweep in sweeps] for rank in ranks]
    sends = [[sweep.exchanged(rank, takes=False) for sweep in sweeps] for rank in ranks]
    sent = [(sweep, segment) for sweep, held in zip(sweeps, sends[shards.rank], strict=True) for segment in held]
    own = torch.stack([_sum_up(sweep.call, segment, compute) for sweep, segment in sent])
    rates = None
    if sweeps[0].call.decay is not None:
        rates = torch.stack([by_feature(sweep.call.decay, own.shape[3]) for sweep, _ in sent])  # pyright: ignore
    gaps = _gaps(sweeps, takes, sends)
    sums = list(SumOverRanks.apply(own, rates, gaps, shards.rank, shards.group).unbind())
    rows = []
    for sweep, taken in zip(sweeps, takes[shards.rank], strict=True):
        states, sums = sums[: len(taken)], sums[len(taken) :]
        rows.append(_rows(sweep, taken, states, compute))
    return rows


def _sum_up(call: Call, segment: Segment, compute: Any) -> Tensor:
    """The state of a segment's keys alone, ``[B,Hk,F,E+1]``; with decay, at its last position."""
    # no queries: the state alone is wanted
    at = call.spec._replace(causal=call.decay is not None, q_first=segment.position, k_first=segment.position)
    _, state = compute(_part(call, Segment(-1, 0, 0, 0), segment, at), None, True)
    return torch.cat([state.kv, state.z[..., None]], dim=-1)


def _rows(sweep: _Sweep, taken: list[Segment], states: list[Tensor], compute: Any) -> Tensor:
    """The output of this rank: shared segments continue from their ``states``; whole sequences do not."""
    call, spec = sweep.call, sweep.call.spec

    def run(segment: Segment, state: Tensor) -> Tensor:
        keys = segment if spec.causal else Segment(-1, 0, 0, 0)  # not causal, all keys are in the sum
        at = spec if spec.causal else spec._replace(q_first=segment.position)
        position = torch.tensor(segment.position)
        before = LinearState(state[..., :-1], state[..., -1], position, spec.k_len, call.decay)
        return compute(_part(call, segment, keys, at), before, False)

    rows = [run(segment, state) for segment, state in zip(taken, states, strict=True)]
    whole = [x for x in _segments(sweep.q_bounds, sweep.rank, sweep.bounds) if x not in taken]
    if whole:  # sequences that no other rank has a part of
        shard = Segment(0, whole[0].start, whole[-1].end, 0)
        ends = torch.tensor([0, *(segment.end - shard.start for segment in whole)], device=call.q.device)
        rows.insert(1, compute(_part(call, shard, shard, spec)._replace(cu_seqlens=ends), None, False))
    return torch.cat(rows, dim=2) if len(rows) > 1 else rows[0]


def _part(call: Call, queries: Segment, keys: Segment, spec: AttentionSpec) -> Call:
    """The call of these queries and keys alone, as one sequence."""
    k, v = (x[:, :, keys.start : keys.end] for x in (call.k, call.v))
    mask = None if call.key_mask is None else call.key_mask[:, keys.start : keys.end]
    q = call.q[:, :, queries.start : queries.end]
    return call._replace(q=q, k=k, v=v, key_mask=mask, cu_seqlens=None, spec=spec)


def _segments(piece_bounds: Sequence[int], rank: int, bounds: Sequence[int]) -> list[Segment]:
    """The parts of the sequences between ``bounds`` that ``rank`` holds, none of them empty."""
    first, last = piece_bounds[rank], piece_bounds[rank + 1]
    held = [(i, max(a, first), min(b, last), a) for i, (a, b) in enumerate(pairwise(bounds))]
    return [Segment(i, a - first, b - first, a - begin) for i, a, b, begin in held if a < b]


def _exchanged(held: list[Segment], causal: bool, causal_end: int) -> list[Segment]:
    """The segments of a shard that may continue on another rank.

    Causal, queries look back from the first and keys are looked back at in the last (``causal_end`` 0 and -1). Not
    causal, both ends matter, and a segment that is both counts as the first.
    """
    last = held[-1].end if held else 0
    nothing = Segment(-1, last, last, 0)
    if causal:
        return [held[causal_end] if held else nothing]
    return [held[0] if held else nothing, held[-1] if len(held) > 1 else nothing]


def _gaps(
    sweeps: list[_Sweep], takes: list[list[list[Segment]]], sends: list[list[list[Segment]]]
) -> tuple[tuple[int | None, ...], ...]:
    """How many positions lie between a segment that is sent and one that takes it, None where it does not; rows
    (takers) and columns (senders) by rank and place."""

    def gap(taker: int, i: int, take: Segment, sender: int, j: int, send: Segment) -> int | None:
        if i != j or take.sequence != send.sequence or take.sequence < 0:
            return None
        sweep, to, start = sweeps[i], sweeps[i].place(taker), sweeps[i].place(sender)
        if not sweep.call.spec.causal:
            return 0
        return sweep.q_bounds[to] - sweep.k_bounds[start + 1] if start < to else None

    takers, senders = (
        [(rank, i, x) for rank, by_sweep in enumerate(held) for i, segments in enumerate(by_sweep) for x in segments]
        for held in (takes, sends)
    )
    return tuple(tuple(gap(*taker, *sender) for sender in senders) for taker in takers)


class SumOverRanks(torch.autograd.Function):
    """``x [slots, ...]`` of every rank, gathered and summed up as ``gaps`` say: ``[slots, ...]``.

    Row i of rank r is the sum of the gathered ones with a number in row ``r * slots + i`` of the gaps, each decayed
    over so many positions by ``rates [slots,Hk,F]``, those of its slot. The gradient of what a rank sent is the sum of
    the gradients of those that took it: the same function with the gaps transposed.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rates: Tensor | None, gaps: tuple[tuple[int | None, ...], ...], rank: int, group: Any
    ) -> Tensor:
        ctx.settings = rates, gaps, rank, group
        slots = x.shape[0]
        every = x if len(gaps) == slots else _all_gather(x.contiguous(), 0, group)

        def sum_of(row: tuple[int | None, ...]) -> Tensor:
            if rates is None:
                return every[[i for i, gap in enumerate(row) if gap is not None]].sum(0)
            taken = [fade(every[i], rates[i % slots, ..., None], gap) for i, gap in enumerate(row) if gap is not None]
            return torch.stack(taken).sum(0) if taken else torch.zeros_like(every[0])

        return torch.stack([sum_of(row) for row in gaps[rank * slots : (rank + 1) * slots]])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rates, gaps, rank, group = ctx.settings
        grad = SumOverRanks.apply(g, rates, tuple(zip(*gaps, strict=True)), rank, group)
        return grad, None, None, None, None
