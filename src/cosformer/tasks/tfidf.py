"""TF-IDF with logistic regression: what a classifier of texts should beat before it is worth its training."""

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.data.subwords import batched

_BUCKETS = 1 << 18  # that words and pairs of words are hashed into
_TERMS = 1 << 16  # with weights: those in the most texts
_WORDS = 1_000  # of each text that are read
_ROWS = 2_000  # counted at once
_WORD = re.compile(r"[\w']+")
_PAIR = np.uint64(0x9E3779B97F4A7C15)  # an odd multiplier that tells "a b" from "b a"


class TfIdf:
    """Logistic regression (scikit-learn's C = 1) on TF-IDF weighted words and word pairs."""

    def __init__(self, texts: Sequence[str], labels: np.ndarray, classes: int) -> None:
        """Fits the weights to ``texts`` and their classes ``labels``, both of ``len(texts)`` rows."""
        counted = list(_counts(texts))
        texts_with = sum(
            (np.bincount(terms, minlength=_BUCKETS) for _, terms, _ in counted), np.zeros(_BUCKETS, np.int64)
        )
        self._idf = np.log((1 + len(texts)) / (1 + texts_with)) + 1
        chosen = np.argsort(-texts_with, kind="stable")[:_TERMS]
        chosen = chosen[texts_with[chosen] > 1]  # what one text alone has says nothing about others
        self._column = np.full(_BUCKETS, -1)
        self._column[chosen] = np.arange(len(chosen))
        self._columns = len(chosen)
        inputs, targets = self._matrix(counted, len(texts)), torch.from_numpy(labels.astype(np.int64))
        weights = torch.zeros(self._columns, classes, requires_grad=True)
        bias = torch.zeros(classes, requires_grad=True)
        transposed = inputs.transpose(0, 1).coalesce()
        optimizer = torch.optim.LBFGS([weights, bias], max_iter=50, history_size=5, line_search_fn="strong_wolfe")

        def loss() -> float:
            with torch.no_grad():
                logits = inputs @ weights + bias
                total = F.cross_entropy(logits, targets, reduction="sum") + weights.square().sum() / 2
                error = logits.softmax(-1) - F.one_hot(targets, classes)
                weights.grad = (transposed @ error + weights) / len(targets)
                bias.grad = error.sum(0) / len(targets)
            return float(total) / len(targets)

        optimizer.step(loss)
        self._weights, self._bias = weights.detach(), bias.detach()

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """The most probable class of each text, int64 [rows]."""
        inputs = self._matrix(_counts(texts), len(texts))
        return (inputs @ self._weights + self._bias).argmax(-1).numpy()

    def _matrix(self, counted: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], rows: int) -> Tensor:
        """Rows of unit length, sparse [rows, terms]."""
        first, places, values = 0, [], []
        for row, terms, counts in counted:
            kept = self._column[terms] >= 0
            row, terms = row[kept], terms[kept]
            weighed = (1 + np.log(counts[kept])) * self._idf[terms]
            lengths = np.sqrt(np.bincount(row, weighed**2, minlength=_ROWS))
            places.append(np.stack([row + first, self._column[terms]]))
            values.append((weighed / lengths[row]).astype(np.float32))
            first += _ROWS
        at, found = torch.from_numpy(np.concatenate(places, axis=1)), torch.from_numpy(np.concatenate(values))
        return torch.sparse_coo_tensor(at, found, (rows, self._columns), check_invariants=False).coalesce()


def _counts(texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """For each block of rows: the row in the block, the term and how often it is there, for every term of every row."""
    hashes: dict[str, int] = {}
    for block in batched(texts, _ROWS):
        words = [_WORD.findall(text.lower())[:_WORDS] for text in block]
        for word in {word for row in words for word in row} - hashes.keys():
            hashes[word] = zlib.crc32(word.encode("utf-8", "replace"))
        row = np.repeat(np.arange(len(words)), [len(found) for found in words])
        single = np.array([hashes[word] for found in words for word in found], np.uint64)
        together = row[1:] == row[:-1]
        pairs = ((single[:-1] * _PAIR + single[1:]) >> np.uint64(20))[together]
        terms = np.concatenate([single, pairs]).astype(np.int64) % _BUCKETS
        keys, counts = np.unique(np.concatenate([row, row[1:][together]]) * _BUCKETS + terms, return_counts=True)
        yield keys // _BUCKETS, keys % _BUCKETS, counts
