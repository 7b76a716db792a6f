"""The linear sums behind the operator: numerators, denominators and states, in float32 or better.

Heads are grouped: ``q [B,K,G,N,D]``, ``k [B,K,S,D]``, ``v [B,K,S,E]``, K key heads with G query heads each; q and k
have been through the ReLU. Angles are ``(cos, sin)``, each ``[1 or B, N]``.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax

CHUNK = 128  # tokens whose weights are written out as a matrix; a state is kept for each chunk while differentiating
SHORTEST_CHUNK = 16  # of sums that decay, at the largest rate of 4 per token
LARGEST_FACTOR = 64  # chunks of C tokens keep rate * C below: factors then lie between exp(-32) and exp(32)
_EXACT = jax.lax.Precision.HIGHEST

Angles = tuple[jax.Array, jax.Array]


def angles(position: jax.Array, length: int, dtype: Any) -> Angles:
    """cos and sin of ``(pi/2) * position / length``, 0 <= position <= length, to the last digits of ``dtype``.

    Past the middle they are taken from the distance to the end, an exact integer: float32 has no digits left for a
    cosine near pi/2, and far keys hang on just that cosine.
    """
    unit = math.pi / 2 / length
    near, far = position.astype(dtype) * unit, (length - position).astype(dtype) * unit
    late = 2 * position > length
    return jnp.where(late, jnp.sin(far), jnp.cos(near)), jnp.where(late, jnp.cos(far), jnp.sin(near))


def features(x: jax.Array, at: Angles) -> jax.Array:
    """``[..., N, D] -> [..., N, 2D]``: cosine half, then sine half."""
    cos, sin = (jnp.expand_dims(part, (*range(1, x.ndim - 2), x.ndim - 1)) for part in at)
    return jnp.concatenate([x * cos, x * sin], axis=-1)


def chunk_length(largest: float | None) -> int:
    """Tokens of a chunk for sums whose largest rate is this; None: known only when the program runs."""
    allowed = SHORTEST_CHUNK if largest is None else LARGEST_FACTOR / largest if largest > 0 else CHUNK
    return max(SHORTEST_CHUNK, min(CHUNK, 2 ** int(math.log2(allowed))))


def decayed(x: jax.Array, decay: jax.Array | None, distance: Any) -> jax.Array:
    """``x [B,K,...,N,D]`` times ``exp(-decay distance)``, ``decay [K,D]``, ``distance [N]``."""
    if decay is None:
        return x
    factor = jnp.exp(-decay[:, None] * jnp.asarray(distance, decay.dtype)[:, None])
    return x * factor.reshape(factor.shape[0], *[1] * (x.ndim - 4), *factor.shape[1:])


def add_keys(
    kv: jax.Array,
    z: jax.Array,
    k: jax.Array,
    v: jax.Array,
    at: Angles,
    decay: jax.Array | None = None,
    tokens: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """The state ``kv [B,K,2D,E]``, ``z [B,K,2D]`` plus the keys ``k``, decayed up to the last of ``tokens``."""
    tokens = k.shape[2] if tokens is None else tokens
    fk = features(decayed(k, decay, jnp.maximum(tokens - 1 - jnp.arange(k.shape[2]), 0)), at)
    new_kv, new_z = _einsum("bkjf,bkje->bkfe", fk, v), fk.sum(-2)
    if decay is not None:
        # not a product with exp, whose rounding for a slow rate would add up over chunks and steps; what is lost and
        # what is new come together first, so that the one rounding of their sum with the state differs from step to
        # step
        lost = jnp.tile(jnp.expm1(-decay * tokens), 2)
        new_kv, new_z = new_kv + lost[..., None] * kv, new_z + lost * z
    return kv + new_kv, z + new_z


def against_state(fq: jax.Array, kv: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Numerators ``[B,K,G,N,E]`` and denominators ``[B,K,G,N]`` of the query features ``fq`` over a state."""
    return _einsum("bkgif,bkfe->bkgie", fq, kv), _einsum("bkgif,bkf->bkgi", fq, z)


def causal_sums(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv: jax.Array,
    z: jax.Array,
    at: Angles,
    *,
    length: int,
    runs: jax.Array | None = None,
    own: bool = True,
    decay: jax.Array | None = None,
    chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """``(num, den, kv, z)`` of N = S tokens behind a state, query i seeing keys up to its own (``own=False``: before
    it).

    ``runs [B,N]``, rising from 1: a token sees only those of its own run, and the state's run is 0 (nobody's).
    A scan over chunks; its body is computed again in the backward pass, so that memory stays linear in N.

    ``decay [K,D]``: rates; a pair's factor is then split into one of the query and one of the key, measured from the
    middle of a chunk, and the pairs beyond the diagonal are selected away, where the product may overflow.
    """
    n, chunk = q.shape[-2], max(min(chunk, q.shape[-2]), 1)
    count = -(-n // chunk)
    row = np.arange(chunk)
    distance = np.subtract.outer(row, row)
    seen = distance >= (0 if own else 1)
    weight = np.where(seen, np.cos(distance * (math.pi / 2 / length)), 0).astype(q.dtype)

    def cut(x: jax.Array, axis: int, mode: str = "constant") -> jax.Array:
        """Pad ``axis`` to whole chunks and bring the chunks to the front."""
        x = jnp.pad(x, [(0, count * chunk - n if i == axis else 0) for i in range(x.ndim)], mode=mode)
        return jnp.moveaxis(x.reshape(*x.shape[:axis], count, chunk, *x.shape[axis + 1 :]), axis, 0)

    def body(carry: tuple, piece: tuple) -> tuple[tuple, tuple]:
        kv, z, run = carry
        q, k, v, cos, sin, tokens, own_run = piece
        fq = features(decayed(q, decay, row + 1), (cos, sin))
        scores = _einsum("bkgid,bkjd->bkgij", decayed(q, decay, row - chunk // 2), decayed(k, decay, chunk // 2 - row))
        scores = (scores if decay is None else jnp.where(seen, scores, 0)) * weight
        if own_run is not None:
            same = own_run[:, :, None] == own_run[:, None, :]
            scores = scores * same[:, None, None]
            fq = fq * (own_run == run[:, None])[:, None, None, :, None]
        num, den = against_state(fq, kv, z)
        num, den = num + _einsum("bkgij,bkje->bkgie", scores, v), den + scores.sum(-1)
        if own_run is not None:  # only the run at the chunk's end goes on
            last = own_run[:, -1]
            kv, z = kv * (last == run)[:, None, None, None], z * (last == run)[:, None, None]
            k, run = k * (own_run == last[:, None])[:, None, :, None], last
        return (*add_keys(kv, z, k, v, (cos, sin), decay, tokens), run), (num, den)

    tokens = jnp.minimum(chunk, n - chunk * jnp.arange(count))  # the last chunk may have fewer
    pieces = (cut(q, 3), cut(k, 2), cut(v, 2), cut(at[0], 1), cut(at[1], 1), tokens)
    start = (kv, z, None if runs is None else jnp.zeros(runs.shape[:1], runs.dtype))
    own_runs = None if runs is None else cut(runs, 1, mode="edge")
    (kv, z, _), (num, den) = jax.lax.scan(jax.checkpoint(body), start, (*pieces, own_runs))
    num, den = jnp.moveaxis(num, 0, 3), jnp.moveaxis(den, 0, 3)
    num, den = (x.reshape(*x.shape[:3], count * chunk, *x.shape[5:]) for x in (num, den))
    return num[:, :, :, :n], den[:, :, :, :n], kv, z


def runs_of(segment_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``[B,N]`` ids -> the number of each token's run of equal ids, from 1, and its position in the run."""
    place = jnp.broadcast_to(jnp.arange(segment_ids.shape[1]), segment_ids.shape)
    starts = jnp.concatenate(
        [jnp.ones_like(segment_ids[:, :1], bool), segment_ids[:, 1:] != segment_ids[:, :-1]], axis=1
    )
    first = jax.lax.cummax(jnp.where(starts, place, 0), axis=1)
    return jnp.cumsum(starts, axis=1), place - first


def _einsum(pattern: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(pattern, a, b, precision=_EXACT)
