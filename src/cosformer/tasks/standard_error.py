"""How far a score may be off by the choice of test rows: standard errors from sums that add up over batches."""

import math

import numpy as np


def row_sums(nats: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    """What :func:`mean_and_error` needs, from each row's summed loss and number of tokens that count, both ``[rows]``."""
    nats, tokens = nats.astype(np.float64), tokens.astype(np.float64)
    return {
        "rows": float(len(nats)),
        "nats": float(nats.sum()),
        "tokens": float(tokens.sum()),
        "nats_squared": float(nats @ nats),
        "nats_tokens": float(nats @ tokens),
        "tokens_squared": float(tokens @ tokens),
    }


def mean_and_error(sums: dict[str, float]) -> tuple[float, float]:
    """The mean loss per token and its standard error over rows, as tokens of one row depend on each other.

    Rows of equal size: the standard deviation of the rows' means over the root of their number. Of unequal size: the same
    for a ratio of sums, whose deviations are nats - mean * tokens of each row.
    """
    rows, tokens = sums["rows"], sums["tokens"]
    if not tokens:
        return math.nan, math.nan
    mean = sums["nats"] / tokens
    if rows < 2:
        return mean, math.nan
    squares = sums["nats_squared"] - 2 * mean * sums["nats_tokens"] + mean * mean * sums["tokens_squared"]
    return mean, math.sqrt(max(squares, 0.0) * rows / (rows - 1)) / tokens


def share_error(share: float, rows: float) -> float:
    """The standard error of a share of ``rows`` independent rows."""
    return math.sqrt(share * (1 - share) / rows)
