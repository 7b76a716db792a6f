"""The operator for JAX: the same names, checks and meaning as ``cosformer.cosformer_attention``."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

import jax
from cosformer.jax.state import LinearState
from cosformer.jax.sums import (
    CHUNK,
    add_keys,
    against_state,
    angles,
    causal_sums,
    chunk_length,
    features,
    runs_of,
)

ALIGNMENTS = ("absolute", "proportional")
LARGEST_RATE = 4.0  # per token: weights further off than 22 tokens are no numbers of float32 any more
_DTYPES = ("float64", "float32", "bfloat16", "float16")


def cosformer_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    max_len: int | None = None,
    q_offset: int | jax.Array = 0,
    align: str = "absolute",
    decay: Any = None,
    key_mask: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    state: LinearState | None = None,
    return_state: bool = False,
    eps: float = 1e-6,
) -> Any:
    """cosFormer attention of JAX arrays; arguments and meaning are those of ``cosformer.cosformer_attention``.

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,E]``, H a multiple of Hk -> ``out [B,H,N,E]``, or ``(out, state)``.
    Pure, and linear in N and S in time and memory, forward and backward; sums in float32 (float64 for float64 input).

    segment_ids: int ``[B,N]``: packed sequences, self-attention. A run of equal ids is a sequence; positions restart in
    each. q_offset: without ``causal`` it may be a traced integer.

    Positions past max_len raise. Where they are not known while tracing (a state, a traced q_offset or segment_ids
    under ``jit``), the rows that lie past it come out as NaN. Rates that are traced, and a traced state's, are not
    looked at.
    """
    _check_arrays(q, k, v, key_mask)
    n, s = q.shape[2], k.shape[2]
    largest = 0.0
    if decay is not None:
        decay, largest = _check_decay(decay, k, _sums(q))
        if not causal:
            _check_both_directions(n, s, k.shape[3], q_offset, align, state, return_state)
    if align != "absolute":
        _check_proportional(align, causal, q_offset, key_mask, segment_ids, state, return_state)
        q_len, k_len, first = max(n, 1), max(s, 1), 1
    else:
        if max_len is None:
            _check_max_len_optional(key_mask, segment_ids, state, return_state, q_offset)
            max_len = max(n + int(q_offset), s, 1)
        if isinstance(max_len, bool) or not isinstance(max_len, int) or not 1 <= max_len < 2**31:
            raise ValueError(f"max_len={max_len!r}; it must be a whole number from 1 to 2**31 - 1")
        if segment_ids is not None:
            _check_segments(q, k, segment_ids, max_len, q_offset, state, return_state)
        else:
            if state is not None:
                _check_state(state, k, v, _sums(q), max_len, decay)
            _check_positions(n, s, causal, q_offset, max_len, state)
        q_len, k_len, first = max_len, max_len, 0
    if not eps > 0:
        raise ValueError(f"eps={eps}; it must be above 0 so that rows with nothing to attend to give zeros")
    b, hk, d, e = *k.shape[:2], k.shape[3], v.shape[3]
    if state is None:
        state = LinearState.empty(b, hk, d, e, max_len or 0, _sums(q), decay)
    out, kv, z = _attend(
        q, k, v, decay, key_mask, segment_ids, state.kv, state.z, state.position, q_offset,
        causal=causal, before=int(q_offset) if causal else 0, first=first, q_len=q_len, k_len=k_len, eps=float(eps),
        chunk=CHUNK if decay is None else chunk_length(largest),
    )  # fmt: skip
    if not return_state:
        return out
    return out, LinearState(kv, z, state.position + s, state.max_len, None if decay is None else jnp.asarray(decay))


@partial(jax.jit, static_argnames=("causal", "before", "first", "q_len", "k_len", "eps", "chunk"))
def _attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decay: jax.Array | None,
    key_mask: jax.Array | None,
    segment_ids: jax.Array | None,
    kv: jax.Array,
    z: jax.Array,
    seen: jax.Array,
    q_offset: jax.Array,
    *,
    causal: bool,
    before: int,
    first: int,
    q_len: int,
    k_len: int,
    eps: float,
    chunk: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``(out, kv, z)``; compiled once for each shape and setting.

    before: keys in front of the first causal query. first: where positions start to count, 1 with proportional angles.
    """
    dtype, (b, h, n, d), (hk, s) = _sums(q), q.shape, k.shape[1:3]
    if key_mask is not None:  # before anything else: what is not finite under the mask must not reach a product
        k, v = (jnp.where(key_mask[:, None, :, None], x, 0) for x in (k, v))
    fq = jax.nn.relu(q.astype(dtype)).reshape(b, hk, h // hk, n, d)
    k, v = jax.nn.relu(k.astype(dtype)), v.astype(dtype)
    settings = {"length": k_len, "decay": decay, "chunk": chunk}
    if decay is not None and not causal:
        num, den, past = _both_directions(fq, k, v, kv, z, segment_ids, **settings)
    elif segment_ids is not None:
        num, den, past = _segments(fq, k, v, kv, z, segment_ids, causal=causal, **settings)
    else:
        q_place = first + q_offset + jnp.arange(n)[None] + (seen if causal else 0)
        k_place = first + seen + jnp.arange(s)[None]
        past = (q_place >= q_len + first) | (seen + s > k_len)
        k_at = angles(k_place, k_len, dtype)
        if causal and n:
            kv, z = add_keys(kv, z, k[:, :, :before], v[:, :, :before], _slice(k_at, 0, before), decay)
            rest = (fq, k[:, :, before:], v[:, :, before:], kv, z, _slice(k_at, before, s))
            num, den, kv, z = causal_sums(*rest, **settings)
        else:  # no decay, or no query
            kv, z = add_keys(kv, z, k, v, k_at, decay)
            num, den = against_state(features(fq, angles(q_place, q_len, dtype)), kv, z)
    out = num / jnp.maximum(den, eps)[..., None]
    out = jnp.where(past[:, None, None, :, None], jnp.nan, out)
    return out.reshape(b, h, n, v.shape[-1]).astype(q.dtype), kv, z


def _segments(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv: jax.Array,
    z: jax.Array,
    segment_ids: jax.Array,
    *,
    causal: bool,
    length: int,
    decay: jax.Array | None,
    chunk: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Numerators, denominators, and which rows lie past ``length``. Without ``causal``: the keys up to a token, plus,
    read from the other end, those after it."""
    runs, place = runs_of(segment_ids)
    settings = {"length": length, "decay": decay, "chunk": chunk}
    num, den, *_ = causal_sums(q, k, v, kv, z, angles(place, length, q.dtype), runs=runs, **settings)
    if not causal:
        runs, from_end = runs_of(jnp.flip(segment_ids, 1))
        turned = (jnp.flip(q, 3), jnp.flip(k, 2), jnp.flip(v, 2), kv, z, angles(from_end, length, q.dtype))
        later, more, *_ = causal_sums(*turned, length=length, runs=runs, own=False)
        num, den = num + jnp.flip(later, 3), den + jnp.flip(more, 3)
    return num, den, place >= length


def _both_directions(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv: jax.Array,
    z: jax.Array,
    segment_ids: jax.Array | None,
    *,
    length: int,
    decay: jax.Array,
    chunk: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As :func:`_segments`, of sums that decay: the first half of the channels over the keys up to a token, the other
    half, read from the other end, over those from it on."""
    batch, n, half = k.shape[0], k.shape[2], k.shape[3] // 2
    ids = jnp.zeros((batch, n), int) if segment_ids is None else segment_ids
    kv, z = kv[:, :, : 2 * half], z[:, :, : 2 * half]  # zeros: one half of the channels has half of the features
    settings = {"causal": True, "length": length, "chunk": chunk}
    left = (q[..., :half], k[..., :half], v, kv, z, ids)
    right = (jnp.flip(q[..., half:], 3), jnp.flip(k[..., half:], 2), jnp.flip(v, 2), kv, z, jnp.flip(ids, 1))
    num, den, past = _segments(*left, decay=decay[:, :half], **settings)
    later, more, _ = _segments(*right, decay=decay[:, half:], **settings)
    return num + jnp.flip(later, 3), den + jnp.flip(more, 3), past


def _slice(at: tuple[jax.Array, jax.Array], first: int, last: int) -> tuple[jax.Array, jax.Array]:
    return at[0][:, first:last], at[1][:, first:last]


def _sums(q: jax.Array) -> Any:
    return jnp.float64 if q.dtype == jnp.float64 else jnp.float32


def _known(x: Any) -> bool:
    """Whether a value is known now, not only when a traced function runs."""
    return not isinstance(x, Tracer)


def _check_arrays(q: jax.Array, k: jax.Array, v: jax.Array, key_mask: jax.Array | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise ValueError(
                f"{name} has {x.ndim} dimensions, shape {x.shape}; expected 4: [batch, heads, length, channels]"
            )
        if str(x.dtype) not in _DTYPES:
            raise ValueError(f"{name} is {x.dtype}; expected {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must be equal")
    b, h, _, d = q.shape
    hk, s = k.shape[1], k.shape[2]
    if k.shape[0] != b or v.shape[0] != b:
        raise ValueError(f"q, k, v have batch sizes {b}, {k.shape[0]}, {v.shape[0]}; they must be equal")
    if k.shape[3] != d:
        raise ValueError(f"q has {d} channels and k has {k.shape[3]}; they must be equal (v may differ)")
    if v.shape[1] != hk or v.shape[2] != s:
        raise ValueError(f"k has {hk} heads of {s} positions, v has {v.shape[1]} of {v.shape[2]}; they must be equal")
    if hk == 0 or h % hk:
        raise ValueError(f"q has {h} heads, k and v have {hk}; the first must be a multiple of the second")
    if d == 0 or v.shape[3] == 0:
        raise ValueError(f"q and v have {d} and {v.shape[3]} channels; both need at least 1")
    if key_mask is not None:
        if key_mask.dtype != bool:
            raise ValueError(f"key_mask is {key_mask.dtype}; expected bool, True = may be attended")
        if key_mask.shape != (b, s):
            raise ValueError(f"key_mask has shape {key_mask.shape}; expected [batch, key positions] = [{b}, {s}]")


def _check_decay(decay: Any, k: jax.Array, dtype: Any) -> tuple[Any, float | None]:
    """The rates in the dtype of sums, and the largest of them (None while it is not known)."""
    rates = decay if isinstance(decay, Tracer) else np.asarray(decay)
    expected = (k.shape[1], k.shape[3])
    if rates.shape != expected or not jnp.issubdtype(rates.dtype, jnp.floating):
        raise ValueError(
            f"decay is {rates.dtype} {rates.shape}; expected rates [key heads, channels] = {list(expected)}"
        )
    if isinstance(rates, Tracer):
        return jax.lax.stop_gradient(rates.astype(dtype)), None
    if wrong := np.argwhere(~((rates >= 0) & (rates <= LARGEST_RATE))).tolist():
        head, channel = wrong[0]
        raise ValueError(
            f"decay of head {head}, channel {channel} is {rates[head, channel]}; rates are from 0 to {LARGEST_RATE:g} "
            "per token"
        )
    return rates.astype(dtype), float(rates.max(initial=0.0))


def _check_both_directions(
    n: int, s: int, channels: int, q_offset: Any, align: str, state: Any, return_state: bool
) -> None:
    given = {"state": state is not None, "return_state": return_state, "align": align != "absolute"}
    given |= {"q_offset": not _known(q_offset) or bool(q_offset != 0), f"S={s} keys of N={n} queries": n != s}
    _refuse(
        "decay without causal looks both ways in one sequence and does not go with {}",
        given,
        "pass causal=True, or leave them out",
    )
    if channels % 2:
        raise ValueError(
            f"decay without causal looks left with half of the channels and right with the others, and D={channels} is "
            "odd; use an even number"
        )


def _refuse(problem: str, given: dict[str, bool], way_out: str) -> None:
    names = [name for name, there in given.items() if there]
    if names:
        raise ValueError(f"{problem.format(' and '.join(names))}; {way_out}")


def _check_max_len_optional(
    key_mask: Any, segment_ids: Any, state: LinearState | None, return_state: bool, q_offset: Any
) -> None:
    given = {"state": state is not None, "return_state": return_state, "key_mask": key_mask is not None}
    given |= {"segment_ids": segment_ids is not None, "a traced q_offset": not _known(q_offset)}
    problem = "{} given without max_len: the result would depend on batch mates or on how a sequence is split"
    _refuse(problem, given, "pass the max_len of your model")


def _check_positions(n: int, s: int, causal: bool, q_offset: Any, max_len: int, state: LinearState | None) -> None:
    if not _known(q_offset):
        if causal:
            raise ValueError("causal attention with a traced q_offset; pass the number S - N")
    elif q_offset < 0:
        raise ValueError(
            f"q_offset={q_offset}; it must be at least 0 (causal attention needs at least as many keys as queries)"
        )
    elif causal and q_offset != s - n:
        raise ValueError(
            f"causal attention of N={n} queries over S={s} keys with q_offset={q_offset}: the queries must be the last "
            f"N positions; pass q_offset=S-N={s - n}, or arrays of equal length"
        )
    seen = 0 if state is None else int(state.position) if _known(state.position) else 0
    ends = [seen + s] if causal or not _known(q_offset) else [int(q_offset) + n, seen + s]
    if max(ends) > max_len:
        raise ValueError(
            f"sequence of {max(ends)} tokens exceeds max_len={max_len}, past which weights turn negative; use a larger "
            "max_len"
        )


def _check_proportional(
    align: str, causal: bool, q_offset: Any, key_mask: Any, segment_ids: Any, state: Any, return_state: bool
) -> None:
    if align not in ALIGNMENTS:
        raise ValueError(f"align={align!r}; known: {', '.join(ALIGNMENTS)}")
    given = {"causal": causal, "q_offset": not _known(q_offset) or bool(q_offset != 0)}
    given |= {"key_mask": key_mask is not None, "segment_ids": segment_ids is not None, "state": state is not None}
    given["return_state"] = return_state
    problem = "align='proportional' measures positions by the arrays' lengths and does not go with {}"
    _refuse(problem, given, "use align='absolute'")


def _check_segments(
    q: jax.Array,
    k: jax.Array,
    segment_ids: jax.Array,
    max_len: int,
    q_offset: Any,
    state: Any,
    return_state: bool,
) -> None:
    given = {"q_offset": not _known(q_offset) or bool(q_offset != 0), "state": state is not None}
    given["return_state"] = return_state
    _refuse("segment_ids packs whole sequences and does not go with {}", given, "leave them out")
    b, n = q.shape[0], q.shape[2]
    if k.shape[2] != n or segment_ids.shape != (b, n) or not jnp.issubdtype(segment_ids.dtype, jnp.integer):
        raise ValueError(
            f"segment_ids is {segment_ids.dtype} {segment_ids.shape} for N={n}, S={k.shape[2]}; expected integers"
            f" [batch, length] = [{b}, {n}] and self-attention"
        )
    if _known(segment_ids) and segment_ids.size and (longest := int(runs_of(segment_ids)[1].max()) + 1) > max_len:
        raise ValueError(f"packed sequence of {longest} tokens exceeds max_len={max_len}; use a larger max_len")


def _check_state(state: LinearState, k: jax.Array, v: jax.Array, dtype: Any, max_len: int | None, decay: Any) -> None:
    if not isinstance(state, LinearState):
        raise ValueError(f"state is a {type(state).__name__}; pass what return_state=True gave, or None")
    expected = (k.shape[0], k.shape[1], 2 * k.shape[3], v.shape[3])
    if state.kv.shape != expected or state.z.shape != expected[:3]:
        raise ValueError(
            f"state holds kv {state.kv.shape} and z {state.z.shape}; k and v of this call need [B, Hk, F, E] ="
            f" {list(expected)} and [B, Hk, F] = {list(expected[:3])}"
        )
    if state.kv.dtype != dtype:
        raise ValueError(
            f"the state is {state.kv.dtype}, this call keeps sums in {jnp.dtype(dtype)}; convert its arrays"
        )
    if state.max_len != max_len:
        raise ValueError(
            f"the state was made with max_len={state.max_len}, this call has {max_len}; they must be equal"
        )
    if not _same_rates(state.decay, decay, k):
        raise ValueError(
            "the state decays at other rates than this call; pass the decay that the state was made with, or a new "
            "state"
        )


def _same_rates(a: Any, b: Any, k: jax.Array) -> bool:
    """Whether the rates are equal, as far as they are known now. No rates are rates of zero."""
    if a is None and b is None:
        return True
    if not (_known(a) and _known(b)):
        return a is not None and b is not None and a.shape == b.shape
    a, b = (np.zeros((k.shape[1], k.shape[3])) if x is None else np.asarray(x) for x in (a, b))
    return np.array_equal(a, b)
