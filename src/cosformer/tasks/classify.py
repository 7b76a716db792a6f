"""Classification of sequences: texts, pairs of texts in one row, images pixel by pixel, nested lists."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cosformer.data import OWN_SETS
from cosformer.data.dataset import Ragged, Split
from cosformer.data.padding import pad_rows, pad_values
from cosformer.data.vocabulary import Channels
from cosformer.experiment import DataConfig, ModelConfig
from cosformer.models.classification import CosformerForSequenceClassification
from cosformer.models.config import CosformerConfig
from cosformer.tasks.base import Baseline, Task
from cosformer.tasks.scores import answer_scores, answer_sums, confusion_sums, share_error, text_of
from cosformer.tasks.tfidf import TfIdf

_MOST_CLASSES = 100  # of which the confusions are counted


class Classify(Task):
    """Rows are documents, padded to the longest of their batch; padding is masked. ``data.length`` is the most they may
    have, by default as many as the set's own limit, or its longest row; ``data.long`` says what becomes of longer ones.

    Windows: in training a long document gives one stretch of ``data.length`` tokens, drawn anew in every epoch; in an
    evaluation windows that overlap by a quarter cover it, and their probabilities are averaged."""

    name = "classify"
    metric = "accuracy"
    higher_is_better = True
    head = CosformerForSequenceClassification

    def __init__(self, data: DataConfig, seed: int = 0) -> None:
        super().__init__(data, seed)
        self._check_labels()
        longest = max(int(column.lengths.max(initial=0)) for column in self._columns())
        self.length = data.length or self.dataset.max_length or longest
        if longest > self.length and data.long == "refuse":
            raise ValueError(
                f"data set {data.name!r} has a row of {longest} tokens, more than data.length={self.length}; set "
                f"data.length to {longest}, cut the rows with data.long=cut, or with the set's own option, "
                f"max_length={self.length}"
            )

    def _check_labels(self) -> None:
        if self.dataset.num_classes is None or self._labelled("train").labels is None:
            raise ValueError(
                f"data set {self.data.name!r} has no classes; task {self.name!r} needs some, as 'sst2' has"
            )

    def _columns(self) -> list[Ragged]:
        """The documents of every split."""
        if any(part.second is not None for part in self.dataset.splits.values()):
            raise ValueError(f"data set {self.data.name!r} has two documents a row; use task 'match'")
        return [part.tokens for part in self.dataset.splits.values()]

    def model_fields(self) -> dict[str, Any]:
        fields = super().model_fields() | {"num_labels": self.dataset.num_classes}
        names, vocabulary = self.dataset.class_names, self.dataset.vocabulary
        if isinstance(vocabulary, Channels):
            fields |= {"num_input_channels": len(vocabulary.names)}
            fields |= {"channel_mean": vocabulary.mean, "channel_scale": vocabulary.scale}
        if names is not None:
            fields |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        return fields

    def config(self, model: ModelConfig) -> CosformerConfig:
        config = super().config(model)
        lengths = {int(n) for column in self._columns() for n in np.unique(column.lengths)}
        if config.pooling == "mean_all" and len(lengths) > 1:
            raise ValueError(
                "pooling='mean_all' counts padding, so a row's class would depend on the other rows of its batch; rows "
                f"here have {min(lengths)} to {max(lengths)} tokens: use pooling='mean'"
            )
        return config

    # --- training rows

    def train_lengths(self) -> np.ndarray:
        return np.minimum(self._labelled("train").tokens.lengths, self.length)

    def train_row(self, index: int, epoch: int) -> dict[str, Any]:
        row = self._row(self._labelled("train"), index)
        if self.data.long == "windows":
            rng = np.random.default_rng([self.seed, epoch, index])
            row["tokens"] = windows(row["tokens"], self.length, self._frame, rng)[0]
        return row

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        labels = torch.tensor([row["label"] for row in rows])
        if isinstance(self.dataset.vocabulary, Channels):
            values, there = pad_values([row["tokens"] for row in rows])
            inputs = {
                "input_values": torch.from_numpy(values),
                "attention_mask": torch.from_numpy(there.astype(np.int64)),
            }
            return inputs | {"labels": labels}
        ids, mask = self._padded([row["tokens"] for row in rows])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def tokens(self, batch: dict[str, Tensor]) -> int:
        return sum(int(value.sum()) for key, value in batch.items() if key.startswith("attention_mask"))

    def _row(self, split: Split, index: int) -> dict[str, Any]:
        return {"tokens": self._fitting(split.tokens[index]), "label": self._label(split, index)}

    def _label(self, split: Split, index: int) -> Any:
        assert split.labels is not None
        return int(split.labels[index])

    def _fitting(self, tokens: np.ndarray) -> np.ndarray:
        """The document, cut where ``data.long`` says so; what encloses it stays."""
        if self.data.long != "cut" or len(tokens) <= self.length:
            return tokens
        return windows(tokens, self.length, self._frame)[0]

    @property
    def _frame(self) -> tuple[int | None, int | None]:
        return self.dataset.vocabulary.bos_id, self.dataset.vocabulary.eos_id

    def _padded(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        ids, mask = pad_rows(rows, self.dataset.pad_id)
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))

    # --- scores

    @property
    def final(self) -> list[str]:
        """Every split but the training one that has labels."""
        return [
            name for name, part in self.dataset.splits.items() if name != "train" and self._taught(part) is not None
        ]

    def eval_size(self, name: str) -> int:
        return self.at_most(name, len(self._labelled(name)))

    def eval_batch(self, name: str, start: int, stop: int) -> dict[str, Tensor]:
        split = self._labelled(name)
        rows = [self._row(split, int(i)) for i in self._eval_rows(name)[start:stop]]
        if self.data.long != "windows":
            return self.collate(rows)
        parts = [
            (i, window) for i, row in enumerate(rows) for window in windows(row["tokens"], self.length, self._frame)
        ]
        batch = self.collate([rows[i] | {"tokens": window} for i, window in parts])
        return batch | {"document": torch.tensor([i for i, _ in parts])}

    def _eval_rows(self, name: str) -> np.ndarray:
        """Spread over the split: files that are sorted by class would give the first class alone."""
        rows, size = len(self._labelled(name)), self.eval_size(name)
        return np.arange(size) * rows // size

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        logits, answers = self._answers(model, batch)
        own = self.dataset.name in OWN_SETS and (self.dataset.num_classes or 0) <= _MOST_CLASSES
        sums = answer_sums(logits, answers)
        return sums | confusion_sums(logits.argmax(-1), answers, logits.shape[-1]) if own else sums

    def _answers(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The model's answer to each document, of windows the :meth:`_average`, and the right ones."""
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "document")}
        if "document" not in batch:
            return model(**inputs).logits.float(), batch["labels"]
        document, labels = batch["document"], batch["labels"]
        count = int(document.max()) + 1
        # a few long documents have many windows: no more of them at once than documents in a batch
        parts = [model(**{k: v[i : i + count] for k, v in inputs.items()}).logits for i in range(0, len(labels), count)]
        first = torch.searchsorted(document, torch.arange(count, device=document.device))
        return self._average(torch.cat(parts).float(), document, count), labels[first]

    def _average(self, logits: Tensor, document: Tensor, count: int) -> Tensor:
        """Windows' logits [W, classes] -> [count, classes]: log of each document's mean probability."""
        return mean_by(logits.softmax(-1), document, count).log()

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        return answer_scores(sums)

    def baseline(self, name: str) -> Baseline:
        train, labels = self._labelled("train").labels, self._labelled(name).labels
        assert train is not None and labels is not None
        majority, rows = int(np.bincount(train).argmax()), self._eval_rows(name)
        share = float((labels[rows] == majority).mean())
        return Baseline("majority class", share, share_error(share, len(rows)))

    def class_weights(self) -> Tensor:
        labels, classes = self._labelled("train").labels, self.dataset.num_classes
        if labels is None or classes is None:
            return super().class_weights()
        counts = torch.from_numpy(np.bincount(labels, minlength=classes)).clamp(min=1)
        return len(labels) / (classes * counts.float())

    def text_baseline(self, name: str) -> Baseline | None:
        """TF-IDF with logistic regression, for own texts with one class each."""
        if self.name != "classify" or self.dataset.name != "table":
            return None
        labels, rows = self._labelled(name).labels, self._eval_rows(name)
        assert labels is not None
        texts = self._texts(self._labelled(name), rows)
        share = float((self._tfidf.predict(texts) == labels[rows]).mean())
        return Baseline("TF-IDF and logistic regression", share, share_error(share, len(rows)))

    @cached_property
    def _tfidf(self) -> TfIdf:
        train = self._labelled("train")
        assert train.labels is not None and self.dataset.num_classes is not None
        return TfIdf(self._texts(train, np.arange(len(train))), np.asarray(train.labels), self.dataset.num_classes)

    def _texts(self, split: Split, rows: np.ndarray) -> list[str]:
        """The rows as text, whole, without the start and end tokens."""
        found = (text_of(self.dataset.vocabulary, split.tokens[int(i)][1:-1]) for i in rows)
        return [text.decode("utf-8", "replace") for text in found]

    def _taught(self, split: Split) -> Any:
        """The column of a split that holds what is learnt; None where it has none."""
        return split.labels

    def _labelled(self, name: str) -> Split:
        split = self.dataset.splits.get(name)
        if split is None or self._taught(split) is None:
            known = ", ".join(n for n, part in self.dataset.splits.items() if self._taught(part) is not None)
            raise ValueError(f"no evaluation {name!r}: the splits with labels are {known}")
        return split


def windows(
    tokens: np.ndarray, length: int, frame: tuple[int | None, int | None], rng: np.random.Generator | None = None
) -> list[np.ndarray]:
    """Stretches of at most ``length`` tokens that cover the document, each overlapping the next by a quarter or more;
    the start and end tokens of ``frame`` that enclose it enclose each of them. With ``rng`` one stretch, from anywhere
    in the document."""
    if len(tokens) <= length:
        return [tokens]
    enclosed = tokens.ndim == 1 and tokens[0] == frame[0] and tokens[-1] == frame[1]
    body, room = (tokens[1:-1], length - 2) if enclosed else (tokens, length)
    if room < 1:
        raise ValueError(f"data.length={length} leaves no room for text beside the start and end tokens; at least 3")
    if rng is not None:
        starts = rng.integers(0, len(body) - room + 1, 1)
    else:
        count = 1 + -(-(len(body) - room) // max(1, room * 3 // 4))
        starts = np.linspace(0, len(body) - room, count).astype(np.int64)
    stretches = [body[s : s + room] for s in starts]
    return [np.concatenate([tokens[:1], s, tokens[-1:]]) for s in stretches] if enclosed else stretches


def mean_by(values: Tensor, document: Tensor, count: int) -> Tensor:
    """[W, outputs] -> [count, outputs]: the mean over the windows of each document."""
    windows = torch.bincount(document, minlength=count).to(values.dtype)
    return values.new_zeros(count, values.shape[1]).index_add(0, document, values) / windows[:, None]
