"""The unigram model: how often each token is in the training split, whatever stands around it."""

import numpy as np

_AT_ONCE = 1 << 22  # counting casts to int64: a large split is counted piece by piece


def unigram_nats(stream: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """-log p of every id, float64 [V], with add-one smoothing over the ids that are ``allowed`` (bool [V]); inf elsewhere."""
    counts = np.zeros(len(allowed), np.int64)
    for start in range(0, len(stream), _AT_ONCE):
        counts += np.bincount(stream[start : start + _AT_ONCE], minlength=len(allowed))
    counts[~allowed] = 0
    nats = np.full(len(allowed), np.inf)
    nats[allowed] = np.log(counts.sum() + allowed.sum()) - np.log(counts[allowed] + 1.0)
    return nats
