"""Rows padded into one array, with a mask that marks data and padding."""

from collections.abc import Sequence

import numpy as np


def pad_rows(rows: Sequence[np.ndarray], pad_id: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Rows side by side, padded at the end to the longest: (int64 [B, N], mask bool [B, N]).

    The mask is False where the token is ``pad_id``: beyond a row's end, and for pixels with ``lra_padding`` also
    inside. ``pad_id`` None means that no id is free for padding: all rows must then be equally long.
    """
    length = max(len(row) for row in rows)
    if pad_id is None:
        if any(len(row) != length for row in rows):
            raise ValueError("this set has no padding id, so its rows must all be equally long")
        tokens = np.stack(rows).astype(np.int64)
        return tokens, np.ones(tokens.shape, bool)
    tokens = np.full((len(rows), length), pad_id, np.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return tokens, tokens != pad_id


def pad_values(rows: Sequence[np.ndarray], *, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Series ``[steps, channels]`` in one batch, with zeros after shorter ones, or before them: (float32 [B, N,
    channels], mask bool [B, N])."""
    length = max(len(row) for row in rows)
    values = np.zeros((len(rows), length, rows[0].shape[1]), np.float32)
    mask = np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        part = slice(length - len(row), length) if left else slice(0, len(row))
        values[i, part], mask[i, part] = row, True
    return values, mask
