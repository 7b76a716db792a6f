"""What scores are made of: sums that add up over batches, with their standard errors; the unigram model that a language
model must beat; and how much text tokens stand for, so that models with different vocabularies can be compared."""

import math
import re

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from cosformer.data.vocabulary import Bytes, Vocabulary, Words

MOST_CLASSES_SHOWN = 20  # of a confusion matrix in tables for people
_AT_ONCE = 1 << 22  # counting casts to int64: a large split is counted piece by piece
_WORD = re.compile(rb"[^ \t\n\r\f\v]+")


def row_sums(nats: np.ndarray, tokens: np.ndarray) -> dict[str, float]:
    """The sums for :func:`mean_and_error`, from each row's summed loss and number of tokens, ``[rows]``."""
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

    Rows of equal size: the standard deviation of the rows' means over the root of their number. Of unequal size: the
    same for a ratio of sums, whose deviations are nats - mean * tokens of each row.
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


def answer_sums(logits: Tensor, answers: Tensor) -> dict[str, float]:
    """What :func:`answer_scores` needs, from logits ``[rows, classes]`` and the right classes ``[rows]``."""
    return {
        "rows": float(len(answers)),
        "hits": float((logits.argmax(-1) == answers).sum()),
        "nats": F.cross_entropy(logits.double(), answers, reduction="sum").item(),
    }


def answer_scores(sums: dict[str, float]) -> dict[str, float]:
    """Accuracy, its standard error and the loss; with :func:`confusion_sums` also ``macro_f1``."""
    accuracy, loss = (sums[key] / sums["rows"] for key in ("hits", "nats"))
    scores = {"accuracy": accuracy, "error": share_error(accuracy, sums["rows"]), "loss": loss}
    confusion = confusion_matrix(sums)
    return scores if confusion is None else scores | {"macro_f1": macro_f1(confusion)}


def confusion_sums(found: Tensor, answers: Tensor, classes: int) -> dict[str, float]:
    """Counts of each pair of classes, ``confusion TRUE PREDICTED``, from predicted and true ``[rows]``."""
    counts = (answers * classes + found).bincount(minlength=classes**2).tolist()
    return {f"confusion {i // classes} {i % classes}": float(count) for i, count in enumerate(counts)}


def confusion_matrix(sums: dict[str, float]) -> np.ndarray | None:
    """Counts ``[true, predicted]`` from :func:`confusion_sums` in any order; None if there are none."""
    counts = {tuple(map(int, key.split()[1:])): value for key, value in sums.items() if key.startswith("confusion ")}
    if not counts:
        return None
    matrix = np.zeros((math.isqrt(len(counts)),) * 2, np.int64)
    for place, count in counts.items():
        matrix[place] = count
    return matrix


def number_sums(found: Tensor, labels: Tensor) -> dict[str, float]:
    """What :func:`number_scores` needs, from predicted and true numbers, both ``[rows]``."""
    errors, labels = (found.double() - labels.double()).abs(), labels.double()
    sums = {"rows": float(len(labels)), "absolute": errors.sum().item(), "squares": errors.square().sum().item()}
    return sums | {"labels": labels.sum().item(), "labels_squared": labels.square().sum().item()}


def number_scores(sums: dict[str, float]) -> dict[str, float]:
    """The mean absolute error with its standard error, the root of the mean square, and R2: the share of the labels'
    variance that is explained."""
    rows = sums["rows"]
    mae, mean_square = sums["absolute"] / rows, sums["squares"] / rows
    variance = sums["labels_squared"] / rows - (sums["labels"] / rows) ** 2
    spread = math.sqrt(max(mean_square - mae**2, 0.0) / (rows - 1)) if rows > 1 else math.nan
    r2 = 1 - mean_square / variance if variance > 0 else math.nan
    return {"mae": mae, "error": spread, "rmse": math.sqrt(mean_square), "r2": r2}


def macro_f1(confusion: np.ndarray) -> float:
    """Mean F1 over classes, from counts [true, predicted], without classes that are neither true nor predicted."""
    right, total = np.diag(confusion), confusion.sum(0) + confusion.sum(1)
    there = total > 0
    return float((2 * right[there] / total[there]).mean())


def unigram_nats(stream: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """-log p of every id, float64 [V], with add-one smoothing over the ``allowed`` ids (bool [V]); inf elsewhere."""
    counts = np.zeros(len(allowed), np.int64)
    for start in range(0, len(stream), _AT_ONCE):
        counts += np.bincount(stream[start : start + _AT_ONCE], minlength=len(allowed))
    counts[~allowed] = 0
    nats = np.full(len(allowed), np.inf)
    nats[allowed] = np.log(counts.sum() + allowed.sum()) - np.log(counts[allowed] + 1.0)
    return nats


def text_of(vocabulary: Vocabulary, ids: np.ndarray) -> bytes:
    """The text that ``ids`` stand for, an end token as a line end.

    Word by word it is spaced as WikiText's files are: a space before every word and before the line end.
    """
    if isinstance(vocabulary, Words):
        return b"".join(b" \n" if i == vocabulary.eos_id else b" " + vocabulary.words[i].encode() for i in ids.tolist())
    if isinstance(vocabulary, Bytes):
        return np.where(ids == vocabulary.eos_id, ord("\n"), ids.astype(np.int64) - 1).astype(np.uint8).tobytes()
    *lines, rest = np.split(ids, np.flatnonzero(ids == vocabulary.eos_id) + 1)
    return "".join([*(vocabulary.decode(line[:-1]) + "\n" for line in lines), vocabulary.decode(rest)]).encode()


def count_words(text: bytes) -> int:
    """Runs of anything but white space, and every line end: the tokens of a word-level language model."""
    return len(_WORD.findall(text)) + text.count(b"\n")
