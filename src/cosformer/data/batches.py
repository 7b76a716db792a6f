"""Rows to batches: padding, masks, shuffled order. Numpy only; a task turns the arrays into tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cosformer.data.dataset import Dataset, Ragged


@dataclass(frozen=True)
class Batch:
    """``tokens`` int64 [B, N], ``key_mask`` bool [B, N] (True = data), ``labels`` int64 [B]; ``second`` of pairs alike."""

    tokens: np.ndarray
    key_mask: np.ndarray
    labels: np.ndarray | None = None
    second: np.ndarray | None = None
    second_mask: np.ndarray | None = None


def pad_rows(
    rows: Sequence[np.ndarray], pad_id: int | None, length: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows side by side, padded at the end to ``length`` (the longest row if None): (int64 [B, N], mask bool [B, N]).

    The mask is False where the token is ``pad_id``: beyond a row's end, and for pixels with ``lra_padding`` also inside.
    ``pad_id`` None means that no id is free for padding: all rows must then be equally long.
    """
    longest = max(len(row) for row in rows)
    length = longest if length is None else length
    if longest > length:
        raise ValueError(
            f"a row of {longest} tokens does not fit into length={length}; load the set with a smaller max_length"
        )
    if pad_id is None:
        if any(len(row) != length for row in rows):
            raise ValueError("this set has no padding id, so its rows must all be equally long")
        tokens = np.stack(rows).astype(np.int64)
        return tokens, np.ones(tokens.shape, bool)
    tokens = np.full((len(rows), length), pad_id, np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return tokens, tokens != pad_id


def make_batch(dataset: Dataset, split: str, rows: Sequence[int], length: int | None = None) -> Batch:
    """The batch of these row numbers of ``split``."""
    part = dataset.splits[split]

    def padded(column: Ragged) -> tuple[np.ndarray, np.ndarray]:
        return pad_rows([column[int(i)] for i in rows], dataset.pad_id, length)

    second, second_mask = (None, None) if part.second is None else padded(part.second)
    labels = None if part.labels is None else np.array(part.labels[np.asarray(rows)])
    return Batch(*padded(part.tokens), labels, second, second_mask)


def batches(
    dataset: Dataset,
    split: str,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
    length: int | None = None,
) -> Iterator[Batch]:
    """One pass over ``split``; with ``shuffle`` in an order drawn from ``seed`` and ``epoch``."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; at least 1")
    rows = len(dataset.splits[split])
    order = np.random.default_rng([seed, epoch]).permutation(rows) if shuffle else np.arange(rows)
    stop = rows - rows % batch_size if drop_last else rows
    for start in range(0, stop, batch_size):
        yield make_batch(dataset, split, order[start : start + batch_size].tolist(), length)
