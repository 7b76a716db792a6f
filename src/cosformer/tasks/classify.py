"""Classification of sequences: texts, pairs of texts in one row, images pixel by pixel, nested lists."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cosformer.data.dataset import Ragged, Split
from cosformer.data.padding import pad_rows
from cosformer.experiment import DataConfig, ModelConfig
from cosformer.models.classification import CosformerForSequenceClassification
from cosformer.models.config import CosformerConfig
from cosformer.tasks.base import Baseline, Task
from cosformer.tasks.scores import answer_scores, answer_sums, share_error


class Classify(Task):
    """Rows are documents, padded to the longest of their batch; padding is masked. ``data.length`` is the most they may have,
    by default as many as the set's own limit, or its longest row."""

    name = "classify"
    score = "accuracy"
    higher_is_better = True
    head = CosformerForSequenceClassification

    def __init__(self, data: DataConfig, seed: int = 0) -> None:
        super().__init__(data, seed)
        if self.dataset.num_classes is None or self._labelled("train").labels is None:
            raise ValueError(f"data set {data.name!r} has no classes; task {self.name!r} needs some, as 'sst2' has")
        longest = max(int(column.lengths.max(initial=0)) for column in self._columns())
        self.length = data.length or self.dataset.max_length or longest
        if longest > self.length:
            raise ValueError(
                f"data set {data.name!r} has a row of {longest} tokens, more than data.length={self.length}; set data.length"
                f" to {longest}, or cut the rows with the set's own option, max_length={self.length}"
            )

    def _columns(self) -> list[Ragged]:
        """The documents of every split."""
        if any(part.second is not None for part in self.dataset.splits.values()):
            raise ValueError(f"data set {self.data.name!r} has two documents a row; use task 'match'")
        return [part.tokens for part in self.dataset.splits.values()]

    def model_fields(self) -> dict[str, Any]:
        return super().model_fields() | {"num_labels": self.dataset.num_classes}

    def config(self, model: ModelConfig) -> CosformerConfig:
        config = super().config(model)
        lengths = {int(n) for column in self._columns() for n in np.unique(column.lengths)}
        if config.pooling == "mean_all" and len(lengths) > 1:
            raise ValueError(
                "pooling='mean_all' counts padding, so a row's class would depend on the other rows of its batch; rows here"
                f" have {min(lengths)} to {max(lengths)} tokens: use pooling='mean'"
            )
        return config

    # --- training rows

    def train_lengths(self) -> np.ndarray:
        return self._labelled("train").tokens.lengths

    def train_row(self, index: int, epoch: int) -> dict[str, Any]:
        return self._row(self._labelled("train"), index)

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        ids, mask = self._padded([row["tokens"] for row in rows])
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["label"] for row in rows])}

    def tokens(self, batch: dict[str, Tensor]) -> int:
        return sum(int(value.sum()) for key, value in batch.items() if key.startswith("attention_mask"))

    def _row(self, split: Split, index: int) -> dict[str, Any]:
        assert split.labels is not None
        return {"tokens": split.tokens[index], "label": int(split.labels[index])}

    def _padded(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        ids, mask = pad_rows(rows, self.dataset.pad_id)
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))

    # --- scores

    @property
    def final(self) -> list[str]:
        """Every split but the training one that has labels."""
        return [name for name, part in self.dataset.splits.items() if name != "train" and part.labels is not None]

    def eval_size(self, name: str) -> int:
        return self.at_most(name, len(self._labelled(name)))

    def eval_batch(self, name: str, start: int, stop: int) -> dict[str, Tensor]:
        split = self._labelled(name)
        return self.collate([self._row(split, int(i)) for i in self._eval_rows(name)[start:stop]])

    def _eval_rows(self, name: str) -> np.ndarray:
        """Spread over the split: files that are sorted by class would give the first class alone."""
        rows, size = len(self._labelled(name)), self.eval_size(name)
        return np.arange(size) * rows // size

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        return answer_sums(model(**inputs).logits.float(), batch["labels"])

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        return answer_scores(sums)

    def baseline(self, name: str) -> Baseline:
        train, labels = self._labelled("train").labels, self._labelled(name).labels
        assert train is not None and labels is not None
        majority, rows = int(np.bincount(train).argmax()), self._eval_rows(name)
        share = float((labels[rows] == majority).mean())
        return Baseline("majority class", share, share_error(share, len(rows)))

    def _labelled(self, name: str) -> Split:
        split = self.dataset.splits.get(name)
        if split is None or split.labels is None:
            known = ", ".join(n for n, part in self.dataset.splits.items() if part.labels is not None)
            raise ValueError(f"no evaluation {name!r}: the splits with labels are {known}")
        return split
