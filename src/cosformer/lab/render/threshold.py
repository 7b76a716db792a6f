"""The paper's algorithm 2: how often a key belongs to the few that hold most of a query's attention."""

from collections.abc import Iterable, Sequence

import numpy as np


def threshold_frequency(matrices: Iterable[np.ndarray], threshold: float) -> np.ndarray:
    """The share of ``matrices`` (each [N,S], rows of weights) in which key l is among the first of row i.

    The first are the largest weights of the row, taken until their sum exceeds ``threshold``, that one included. A row that
    never gets there (weights that are all zero, or negative) counts all its keys, as in the paper's loop.
    """
    _check(threshold)
    total: np.ndarray | None = None
    count = 0
    for matrix in matrices:
        order, sums = _largest_first(matrix)
        taken = np.empty(order.shape)
        np.put_along_axis(taken, order, _taken(sums, threshold).astype(np.float64), axis=1)
        total = taken if total is None else total + taken
        count += 1
    if total is None:
        raise ValueError("no matrix to count in")
    return total / count


def threshold_counts(matrices: Iterable[np.ndarray], thresholds: Sequence[float]) -> np.ndarray:
    """For each of ``thresholds`` the mean number of keys that algorithm 2 takes of a row, over rows and matrices."""
    for threshold in thresholds:
        _check(threshold)
    counts, rows = np.zeros(len(thresholds)), 0
    for matrix in matrices:
        _, sums = _largest_first(matrix)
        for i, threshold in enumerate(thresholds):
            counts[i] += _taken(sums, threshold).sum()
        rows += matrix.shape[0]
    if not rows:
        raise ValueError("no matrix to count in")
    return counts / rows


def mean_distance(matrices: Iterable[np.ndarray]) -> float:
    """How many positions away the attention lies: the mean of ``|i - l|`` by the size of the weights, over rows and matrices.
    A row without any weight does not count."""
    total, rows = 0.0, 0
    for matrix in matrices:
        size = np.abs(np.asarray(matrix, dtype=np.float64))
        away = np.abs(np.arange(size.shape[0])[:, None] - np.arange(size.shape[1]))
        weight = size.sum(axis=1)
        total += float(((size * away).sum(axis=1)[weight > 0] / weight[weight > 0]).sum())
        rows += int((weight > 0).sum())
    if not rows:
        raise ValueError("no weight to measure a distance by")
    return total / rows


def cosine_matrix(n: int, max_len: int | None = None) -> np.ndarray:
    """The bare re-weighting ``cos(pi/2 (i - j) / max_len)`` [n,n]; ``max_len`` None: n."""
    max_len = n if max_len is None else max_len
    if max_len < n:
        raise ValueError(f"max_len={max_len} is below the {n} positions: weights would turn negative")
    place = np.arange(n)
    return np.cos(np.pi / 2 * (place[:, None] - place) / max_len)


def _largest_first(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns by falling weight, and the running sums along them."""
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2:
        raise ValueError(f"a matrix of weights has two axes; this one has the shape {matrix.shape}")
    order = np.argsort(-matrix, axis=1, kind="stable")
    return order, np.cumsum(np.take_along_axis(matrix, order, axis=1), axis=1)


def _taken(sums: np.ndarray, threshold: float) -> np.ndarray:
    """Which places of the sorted rows are taken: those before which no sum was above the threshold."""
    # the largest sum so far: with negative weights a sum may fall below the threshold again, but the walk has ended
    above = np.maximum.accumulate(sums, axis=1) > threshold
    return np.pad(~above[:, :-1], ((0, 0), (1, 0)), constant_values=True)


def _check(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold}; it is a share of the attention, from 0 to 1")
