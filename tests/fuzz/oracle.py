"""cosFormer attention written out once more: float64, numpy, every pair of positions; nothing of the library in it.

Beside each result stands its magnitude: the same sums with every term taken by its size, times what the division makes
of an error of the sums. Rounding errors of a correct implementation are small multiples of the unit roundoff times
that.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# What magnitudes keep of a decayed term at least. Sums are kept as seen from the middle of a chunk, which is at most
# e^32 away from where they are read, and what falls below 1e-37 there is zero: 1e-37 e^32 of the undecayed term may be
# lost, a rounding error (1e-14 in float64) of this much of it.
LEAST_LEFT = 1e-9


@dataclass
class Given:
    """One problem: queries and keys with their angles, and which pairs see each other."""

    q: Array  # [B,H,N,D]
    k: Array  # [B,Hk,S,D]
    v: Array  # [B,Hk,S,E]
    q_angle: Array  # [N]
    k_angle: Array  # [S]
    visible: NDArray[np.bool_]  # [B,N,S]
    kept: NDArray[np.bool_]  # [B,S]: keys that count
    eps: float
    decay: Array | None = None  # [Hk,D]
    distance: Array | None = None  # [N,S], query less key
    both_ways: bool = False  # half of the channels look left, half right


class Oracle:
    """Outputs, states, gradients and their magnitudes."""

    def __init__(self, given: Given) -> None:
        self.given, keep = given, given.kept[:, None, :, None]
        self.groups = given.q.shape[1] // given.k.shape[1]
        # a masked key leaves everything, whatever it and its value hold
        self.k, self.v = (np.where(keep, x, 0.0) for x in (given.k, given.v))
        self.fq, self.fk = np.maximum(given.q, 0), np.maximum(self.k, 0)
        self.fk_all, self.v_all = (np.repeat(x, self.groups, axis=1) for x in (self.fk, self.v))
        self.factors = [] if given.decay is None else [self._factor(c) for c in range(given.decay.shape[1])]
        visible = given.visible[:, None]
        self.cosines = np.where(visible, np.cos(given.q_angle[:, None] - given.k_angle[None, :]), 0.0)
        products = self._products(self.fq, self.fk_all)
        self.weights = products * self.cosines  # [B,H,N,S]
        # a cosine near zero is a difference of two products: its error is not near zero
        if given.decay is not None:
            products = products + LEAST_LEFT * (self.fq @ self.fk_all.swapaxes(-1, -2))
        self.sizes = products * visible
        self.den = self.weights.sum(-1, keepdims=True)
        self.divisor = np.maximum(self.den, given.eps)
        self.amplified = 1 + self.sizes.sum(-1, keepdims=True) / self.divisor

    @cached_property
    def output(self) -> tuple[Array, Array]:
        out = self.weights @ self.v_all / self.divisor
        size = self.sizes @ np.abs(self.v_all) / self.divisor * self.amplified
        return out, size

    def close_to_eps(self) -> NDArray[np.bool_]:
        """Rows [B,H,N] whose sum may fall on either side of eps: their gradient may be either."""
        return (np.abs(self.den - self.given.eps) <= 1e-2 * self.sizes.sum(-1, keepdims=True))[..., 0] & (
            self.den[..., 0] > 0
        )

    def state(self) -> dict[str, tuple[Array, Array]]:
        """kv [B,Hk,2D,E] and z [B,Hk,2D], after all keys."""
        left = self._left_at_the_end()
        fk = self.fk * left
        kv = self._turned(fk).swapaxes(-1, -2) @ self.v
        z = self._turned(fk).sum(-2)
        size_fk = self._both(self.fk * np.maximum(left, LEAST_LEFT))
        return {"kv": (kv, size_fk.swapaxes(-1, -2) @ np.abs(self.v)), "z": (z, size_fk.sum(-2))}

    def _left_at_the_end(self) -> Array:
        """What decay leaves of each key at the last position, ``[Hk,S,D]``."""
        if self.given.decay is None:
            return np.ones(1)
        return np.exp(-self.given.decay[:, None] * np.arange(self.fk.shape[2] - 1, -1, -1)[:, None])

    def _factor(self, channel: int) -> Array:
        """What decay leaves of each pair, ``[H,N,S]``; 0 where the channel looks the other way."""
        assert self.given.decay is not None and self.given.distance is not None
        way = -1 if self.given.both_ways and channel >= self.given.decay.shape[1] // 2 else 1
        distance = way * self.given.distance
        rates = np.repeat(self.given.decay[:, channel], self.groups)[:, None, None]
        return np.exp(-rates * np.maximum(distance, 0)) * (distance >= 0)

    def _products(self, fq: Array, fk: Array) -> Array:
        """``fq.fk`` of every pair, each channel decayed, ``[B,H,N,S]``."""
        if self.given.decay is None:
            return fq @ fk.swapaxes(-1, -2)
        pairs = (fq[..., c, None] * fk[..., None, :, c] * factor for c, factor in enumerate(self.factors))
        return sum(pairs, start=np.zeros(1))

    def _by_feature(self, by_score: Array, other: Array, of_keys: bool) -> Array:
        """Gradients of queries from those of the scores and the keys, or of keys from the queries."""
        if self.given.decay is None:
            return self._without_decay(by_score, other, of_keys)
        columns = []
        for c, factor in enumerate(self.factors):
            decayed = by_score * factor
            columns.append((decayed.swapaxes(-1, -2) if of_keys else decayed) @ other[..., c, None])
        return np.concatenate(columns, -1)

    @staticmethod
    def _without_decay(by_score: Array, other: Array, of_keys: bool) -> Array:
        return (by_score.swapaxes(-1, -2) if of_keys else by_score) @ other

    def _size_by_feature(self, by_score: Array, other: Array, of_keys: bool) -> Array:
        size = self._by_feature(by_score, other, of_keys)
        return size if self.given.decay is None else size + LEAST_LEFT * self._without_decay(by_score, other, of_keys)

    def gradients(self, g_out: Array, g_kv: Array | None, g_z: Array | None) -> dict[str, tuple[Array, Array]]:
        """Of sum(g_out * out) + sum(g_kv * kv) + sum(g_z * z), for q, k, v."""
        out, size_out = self.output
        by_num = g_out / self.divisor
        by_den = -(by_num * out).sum(-1, keepdims=True) * (self.den > self.given.eps)
        by_score = (by_num @ self.v_all.swapaxes(-1, -2) + by_den) * self.cosines
        size_num = np.abs(g_out) / self.divisor * self.amplified
        size_den = (size_num * size_out).sum(-1, keepdims=True)
        size_score = (size_num @ np.abs(self.v_all).swapaxes(-1, -2) + size_den) * self.given.visible[:, None]
        dq, dk = self._by_feature(by_score, self.fk_all, False), self._by_key(self._by_feature(by_score, self.fq, True))
        size_q = self._size_by_feature(size_score, self.fk_all, False)
        size_k = self._by_key(self._size_by_feature(size_score, self.fq, True))
        dv = self._by_key(self.weights.swapaxes(-1, -2) @ by_num)
        size_v = self._by_key(self.sizes.swapaxes(-1, -2) @ size_num)
        if g_kv is not None and g_z is not None:
            by_feature = self.v @ g_kv.swapaxes(-1, -2) + g_z[..., None, :]
            size_feature = np.abs(self.v) @ np.abs(g_kv).swapaxes(-1, -2) + np.abs(g_z)[..., None, :]
            d, left = self.fk.shape[-1], self._left_at_the_end()
            dk = dk + self._turned(by_feature[..., :d], by_feature[..., d:]) * left
            size_left = np.maximum(left, LEAST_LEFT)
            size_k = size_k + (size_feature[..., :d] + size_feature[..., d:]) * size_left
            dv = dv + self._turned(self.fk * left) @ g_kv
            size_v = size_v + self._both(self.fk * size_left) @ np.abs(g_kv)
        keep = self.given.kept[:, None, :, None]
        positive_k = keep & (self.k > 0)
        return {
            "dq": (dq * (self.given.q > 0), size_q),
            "dk": (dk * positive_k, size_k * keep),
            "dv": (dv * keep, size_v * keep),
        }

    def _turned(self, x: Array, other: Array | None = None) -> Array:
        """[x cos ; x sin] of the keys' angles; with ``other`` x cos + other sin."""
        c, s = np.cos(self.given.k_angle)[:, None], np.sin(self.given.k_angle)[:, None]
        return np.concatenate([x * c, x * s], -1) if other is None else x * c + other * s

    @staticmethod
    def _both(x: Array) -> Array:
        return np.concatenate([x, x], -1)

    def _by_key(self, x: Array) -> Array:
        """Sums over the query heads of each key head: [B,H,S,·] -> [B,Hk,S,·]."""
        b, h, s, width = x.shape
        return x.reshape(b, h // self.groups, self.groups, s, width).sum(2)
