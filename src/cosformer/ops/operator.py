"""The public operators: cosFormer attention and its family, in every form, with every mistake of the caller named."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor

from cosformer.ops.backends import check_backend
from cosformer.ops.checks import (
    autocast_enabled,
    check_bounds,
    check_decay,
    check_eps,
    check_rates,
    check_state,
    check_tensors,
    check_two_sided,
    check_whole,
)
from cosformer.ops.dispatch import attend
from cosformer.ops.normaliser import check_normaliser
from cosformer.ops.one_token import try_one_token
from cosformer.ops.spec import AttentionSpec, Call
from cosformer.ops.state import LinearState

ALIGNMENTS = ("absolute", "proportional")


# fmt: off
@overload
def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., max_len: int | None = ..., q_offset: int = ...,
    align: str = ..., decay: Tensor | None = ..., key_mask: Tensor | None = ..., cu_seqlens: Tensor | None = ...,
    state: LinearState | None = ..., return_state: Literal[False] = ..., eps: float = ..., backend: str = ...,
    group: Any = ...,
) -> Tensor: ...
@overload
def cosformer_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., max_len: int | None = ..., q_offset: int = ...,
    align: str = ..., decay: Tensor | None = ..., key_mask: Tensor | None = ..., cu_seqlens: Tensor | None = ...,
    state: LinearState | None = ..., return_state: Literal[True], eps: float = ..., backend: str = ...,
    group: Any = ...,
) -> tuple[Tensor, LinearState]: ...
# fmt: on
def cosformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    max_len: int | None = None,
    q_offset: int = 0,
    align: str = "absolute",
    decay: Tensor | None = None,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    state: LinearState | None = None,
    return_state: bool = False,
    eps: float = 1e-6,
    backend: str = "auto",
    group: Any = None,
) -> Tensor | tuple[Tensor, LinearState]:
    """cosFormer attention: weights ``relu(q_i).relu(k_j) * cos(pi/2 * (i-j)/max_len)``, normalised by their sum.

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,E]``, H a multiple of Hk -> ``out [B,H,N,E]``, or ``(out, state)``.
    Time and memory are linear in N and S. Sums are kept in float32 (float64 for float64 input), whatever the dtype.

    causal: query i sees keys up to its own position. N = S, or ``q_offset = S - N``: the queries are the last N
    positions. max_len: the paper's M, the length that the quarter turn is spread over; fixed for a model. None takes
        ``max(N + q_offset, S)`` of this call, and is refused where results would then depend on batch mates or on the
        split of a sequence. Longer input raises, because weights past max_len turn negative.
    q_offset: position of the first query; the first key has position 0.
    align: ``absolute`` compares positions; ``proportional`` compares i/N with j/S (for unequal lengths that run in
    parallel). decay: fixed rates ``[Hk,D]`` from 0 to 4 a token: channel c of a head weighs a key ``exp(-decay_c *
    |i-j|)``. Causal, every
        channel looks back. Without ``causal``, for self-attention, the first D/2 channels of a head look left (j <= i)
        and the others right (j >= i); numerators and sums of both are added before the division. A masked key still
        takes a position.
    key_mask: bool ``[B,S]``, True = may be attended. A masked key leaves numerator and denominator. Positions count as
        they stand in the tensor.
    cu_seqlens: int ``[n+1]`` from 0 to N: packed sequences, B = 1, self-attention; positions restart in each.
    state: what ``return_state`` gave for the tokens before. New keys follow the ``state.seen`` old ones, and causal
    queries
        with them; without ``causal`` queries stay at ``q_offset`` and see all keys, also with S = 0 (cached
        cross-attention).
    eps: rows are divided by ``max(sum, eps)``; a row with nothing to attend to gives zeros. Below the smallest normal
        number of the sums' dtype it counts as that number. With ``decay`` sums fall below eps in ordinary use: at rate
        1 a score of 1 that lies 14 tokens back, and the output fades to zero.
    backend: ``auto``, or one of ``cosformer.ops.backends.BACKENDS``.
    group: a process group of ``torch.distributed``. Each of its ranks holds a contiguous shard of the sequence, in the
    order of the
        ranks, and gets the rows of its shard, as one process with the whole would. Shards may differ in length, or be
        empty. All ranks call, and all run the backward pass. ``key_mask`` is the shard's own, ``cu_seqlens`` that of
        the whole sequence.

    NaN and infinity in q reach their own row alone; in k and v they reach every row that sees them. In a causal call
    they may also reach rows up to 256 positions (D, if larger) before them, because a block multiplies them by zero
    weights; with ``backend="dense"`` any earlier row. They never reach another head, batch item, earlier call or packed
    sequence, except that ``backend="plain"`` puts neighbouring sequences into one block. ReLU makes a zero of -inf in q
    and k. What ``key_mask`` hides reaches nothing, and its gradients are zero.

    float16: outputs and gradients that exceed 65,504 become infinity, as in torch's own attention, so that a
    ``GradScaler`` sees them.

    Second derivatives are right and take O(N^2) memory. Forward-mode derivatives: use ``backend="dense"``.
    """
    if group is not None:
        rest = {"q_offset": q_offset, "align": align != "absolute", "state": state, "return_state": return_state}
        facts = {"causal": causal, "max_len": max_len, "eps": eps, "cu_seqlens": cu_seqlens, "decay": decay}
        return _attend_sharded(q, k, v, key_mask, _whole_cosine, backend, group, rest, facts)
    plain = key_mask is None and cu_seqlens is None and q_offset == 0 and align == "absolute" and backend == "auto"
    if plain and causal and return_state and state is not None:
        found = try_one_token(q, k, v, state, max_len, decay, eps)
        if found is not None:
            return found
    check_tensors(q, k, v, key_mask)
    n, s = q.shape[2], k.shape[2]
    check_whole("q_offset", q_offset, 0)
    if align != "absolute":
        given = {"causal": causal, "q_offset": q_offset, "key_mask": key_mask, "cu_seqlens": cu_seqlens}
        _check_proportional(align, **given, state=state, return_state=return_state)
        spec = AttentionSpec.cosine(
            max(n, 1), k_len=max(s, 1), causal=False, q_first=1, k_first=1, eps=check_eps(eps, v.dtype)
        )
        max_len = 0
    else:
        if max_len is None:
            _check_max_len_optional(state=state, return_state=return_state, key_mask=key_mask, cu_seqlens=cu_seqlens)
            max_len = max(n + q_offset, s, 1)
        else:
            check_whole("max_len", max_len, 1)
        if cu_seqlens is not None:
            _check_packing(
                q, k, cu_seqlens, q_offset=q_offset, key_mask=key_mask, state=state, return_state=return_state
            )
            # values are not known while tracing or on the meta device; `cosformer::linear_forward` looks at them when
            # it runs
            if not (torch.compiler.is_compiling() or cu_seqlens.is_meta):
                check_bounds(cu_seqlens, n, max_len)
        else:
            _check_positions(n, s, causal, q_offset, max_len, state)
        spec = AttentionSpec.cosine(max_len, causal=causal, q_first=q_offset, eps=check_eps(eps, v.dtype))
    if state is not None:
        check_state(state, k, v, 2 * k.shape[3], max_len)
    decay = _check_decay(
        q, k, decay, state, causal, q_offset=q_offset, align=align != "absolute", return_state=return_state
    )
    if not q.dtype == k.dtype == v.dtype or autocast_enabled(q.device):
        q, k, v = _cast_for_autocast(q, k, v)
    if backend != "auto":
        check_backend(backend, q, k, v)
    call = Call(q, k, v, None, None, key_mask, cu_seqlens, decay, spec)
    return attend(call, state, return_state, max_len=max_len, backend=backend)


# fmt: off
@overload
def linear_attention(
    fq: Tensor, fk: Tensor, v: Tensor, *, causal: bool = ..., decay: Tensor | None = ..., key_mask: Tensor | None = ...,
    cu_seqlens: Tensor | None = ..., state: LinearState | None = ..., return_state: Literal[False] = ...,
    relu: bool = ..., normaliser: str = ..., eps: float = ..., backend: str = ..., group: Any = ...,
) -> Tensor: ...
@overload
def linear_attention(
    fq: Tensor, fk: Tensor, v: Tensor, *, causal: bool = ..., decay: Tensor | None = ..., key_mask: Tensor | None = ...,
    cu_seqlens: Tensor | None = ..., state: LinearState | None = ..., return_state: Literal[True], relu: bool = ...,
    normaliser: str = ..., eps: float = ..., backend: str = ..., group: Any = ...,
) -> tuple[Tensor, LinearState]: ...
# fmt: on
def linear_attention(
    fq: Tensor,
    fk: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    decay: Tensor | None = None,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    state: LinearState | None = None,
    return_state: bool = False,
    relu: bool = False,
    normaliser: str = "clamp",
    eps: float = 1e-6,
    backend: str = "auto",
    group: Any = None,
) -> Tensor | tuple[Tensor, LinearState]:
    """Attention with weights ``fq_i . fk_j``, in time and memory linear in the length.

    ``fq [B,H,N,F]``, ``fk [B,Hk,S,F]``, ``v [B,Hk,S,E]`` -> ``out [B,H,N,E]``, or ``(out, state)`` with
    ``return_state``. ``key_mask`` bool ``[B,S]``, True = may be attended. Causal: N = S, or the queries are the last N
    of the S new positions. ``relu`` applies ReLU to both features inside the kernel. ``normaliser``: the row sum is
    clamped at eps (``clamp``), gets eps added (``add``), keeps its sign away from zero (``signed``), or is not divided
    by (``none``). ``decay [Hk,F]``, ``cu_seqlens`` and ``group`` are those of :func:`cosformer_attention`; the length
    has no limit.
    """
    check_normaliser(normaliser)
    if group is not None:
        rest = {"state": state, "return_state": return_state}
        facts = {"causal": causal, "max_len": 0, "eps": eps, "cu_seqlens": cu_seqlens, "decay": decay}
        make_spec = partial(_whole_features, relu, normaliser)
        return _attend_sharded(fq, fk, v, key_mask, make_spec, backend, group, rest, facts)
    check_tensors(fq, fk, v, key_mask)
    if autocast_enabled(fq.device) and not fq.dtype == fk.dtype == v.dtype:
        fq, fk, v = _cast_for_autocast(fq, fk, v)
    if cu_seqlens is not None:
        _check_packing(fq, fk, cu_seqlens, key_mask=key_mask, state=state, return_state=return_state)
        if not (torch.compiler.is_compiling() or cu_seqlens.is_meta):
            check_bounds(cu_seqlens, fq.shape[2], 0)
    if causal and fq.shape[2] > fk.shape[2]:
        raise ValueError(f"causal attention of N={fq.shape[2]} queries over S={fk.shape[2]} keys: N must be at most S")
    if state is not None:
        check_state(state, fk, v, fk.shape[3], 0)
    decay = _check_decay(fq, fk, decay, state, causal, return_state=return_state)
    if backend != "auto":
        check_backend(backend, fq, fk, v)
    spec = AttentionSpec.features(causal=causal, relu=relu, normaliser=normaliser, eps=check_eps(eps, v.dtype))
    call = Call(fq, fk, v, None, None, key_mask, cu_seqlens, decay, spec)
    return attend(call, state, return_state, max_len=0, backend=backend)


def _attend_sharded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    make_spec: Callable[..., AttentionSpec],
    backend: str,
    group: Any,
    rest: dict[str, Any],
    facts: dict[str, Any],
) -> Tensor:
    """A rank's rows of a sharded sequence. ``rest``: the options that do not go with a group; ``facts``: those that all
    ranks must have alike, causal, max_len, eps, cu_seqlens and decay, of which ``make_spec`` takes the first three."""
    from cosformer.ops import parallel  # torch.distributed is loaded by those who use it

    def check() -> Call:
        if names := _given(**rest):
            raise ValueError(f"group shards a whole sequence and does not go with {', '.join(names)}")
        spec = make_spec(facts["causal"], facts["max_len"], check_eps(facts["eps"], v.dtype))
        check_tensors(q, k, v, key_mask)
        rates = _check_decay(q, k, facts["decay"], None, facts["causal"])
        check_backend(backend, q, k, v)
        cu_seqlens = facts["cu_seqlens"]
        if cu_seqlens is not None:
            _check_packing(q, k, cu_seqlens, key_mask=key_mask)
        return Call(*_cast_for_autocast(q, k, v), None, None, key_mask, cu_seqlens, rates, spec)

    shards, call = parallel.agree(group, check, q, k, v, **facts)
    return parallel.attend_shards(call, shards, max_len=call.spec.k_len, backend=backend)


def _whole_cosine(causal: bool, max_len: int | None, eps: float) -> AttentionSpec:
    if max_len is None:
        raise ValueError("group given without max_len: a shard does not know the length of the whole; pass max_len")
    check_whole("max_len", max_len, 1)
    return AttentionSpec.cosine(max_len, causal=causal, eps=eps)


def _whole_features(relu: bool, normaliser: str, causal: bool, _: int, eps: float) -> AttentionSpec:
    return AttentionSpec.features(causal=causal, relu=relu, normaliser=normaliser, eps=eps)


def _check_decay(
    q: Tensor, k: Tensor, decay: Tensor | None, state: LinearState | None, causal: bool, **options: Any
) -> Tensor | None:
    """The rates in the accumulator's dtype; ``options`` do not go with decay without causality."""
    if decay is not None and (state is None or state.decay is not decay):
        decay = check_decay(decay, k)
    if decay is not None and not causal:
        check_two_sided(q, k, **options, state=state is not None)
    if state is not None:
        check_rates(state, decay)
    return decay


def _given(**options: Any) -> list[str]:
    """The names of the options that differ from their defaults, which are None, False and 0."""
    return [name for name, value in options.items() if value is not None and (isinstance(value, Tensor) or value)]


def _check_max_len_optional(**options: Any) -> None:
    if names := _given(**options):
        raise ValueError(
            f"{' and '.join(names)} given without max_len: the result would depend on batch mates or on how a sequence "
            "is split; pass the max_len of your model"
        )


def _check_positions(n: int, s: int, causal: bool, q_offset: int, max_len: int, state: LinearState | None) -> None:
    if causal and q_offset != s - n:
        raise ValueError(
            f"causal attention of N={n} queries over S={s} keys with q_offset={q_offset}: the queries must be the last "
            f"N positions; pass q_offset=S-N={s - n}, or tensors of equal length"
        )
    longest = max(n + q_offset, s)
    if state is None and longest > max_len:
        raise ValueError(
            f"sequence of {longest} tokens exceeds max_len={max_len}, past which weights turn negative; use a larger "
            "max_len"
        )
    if state is not None and not causal and n + q_offset > max_len:
        raise ValueError(f"queries up to position {n + q_offset} exceed max_len={max_len}; use a larger max_len")


def _check_proportional(align: str, **options: Any) -> None:
    if align not in ALIGNMENTS:
        raise ValueError(f"align={align!r}; known: {', '.join(ALIGNMENTS)}")
    if names := _given(**options):
        raise ValueError(
            f"align='proportional' measures positions by the tensors' lengths and does not go with {', '.join(names)};"
            " use align='absolute'"
        )


def _check_packing(q: Tensor, k: Tensor, cu_seqlens: Tensor, **options: Any) -> None:
    """All but the values of the bounds; ``options`` do not go with them."""
    if names := _given(**options):
        raise ValueError(f"cu_seqlens packs whole sequences and does not go with {', '.join(names)}")
    n = q.shape[2]
    if q.shape[0] != 1 or k.shape[2] != n:
        raise ValueError(
            f"cu_seqlens needs batch 1 and self-attention, got batch {q.shape[0]}, N={n}, S={k.shape[2]};"
            " concatenate the sequences along the length"
        )
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.numel() < 1:
        raise ValueError(f"cu_seqlens is {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}; expected int32 or int64 [n+1]")


def _cast_for_autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under autocast the inputs take its dtype, as for torch's own attention; otherwise dtypes must agree."""
    if autocast_enabled(q.device) and q.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(q.device.type)
        return q.to(dtype), k.to(dtype), v.to(dtype)
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must be equal")
    return q, k, v
