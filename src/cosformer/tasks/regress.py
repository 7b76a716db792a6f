"""Regression: a number for each text."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cosformer.data.dataset import Split
from cosformer.tasks.base import Baseline
from cosformer.tasks.classify import Classify, mean_by
from cosformer.tasks.scores import number_scores, number_sums


class Regress(Classify):
    """As classification, of numbers. The model works in units of the training labels' spread, and answers in theirs:
    the mean and the scale are in its config. Of windows the mean of the numbers counts."""

    name = "regress"
    metric = "mae"
    higher_is_better = False

    def _check_labels(self) -> None:
        labels = self._labelled("train").labels
        if labels is None or not np.issubdtype(labels.dtype, np.floating):
            raise ValueError(f"data set {self.data.name!r} has no numbers; task {self.name!r} needs target='number'")

    def model_fields(self) -> dict[str, Any]:
        labels = self._train_labels
        scale = float(labels.std()) or 1.0
        fields: dict[str, Any] = {"num_labels": 1, "problem_type": "regression"}
        fields |= {"target_mean": float(labels.mean()), "target_scale": scale}
        if (name := self.dataset.choices.get("label")) is not None:
            fields |= {"id2label": {0: name}, "label2id": {name: 0}}
        return super().model_fields() | fields

    @cached_property
    def _train_labels(self) -> np.ndarray:
        labels = self._labelled("train").labels
        assert labels is not None
        return np.asarray(labels)

    def _label(self, split: Split, index: int) -> float:
        assert split.labels is not None
        return float(split.labels[index])

    def _average(self, logits: Tensor, document: Tensor, count: int) -> Tensor:
        return mean_by(logits, document, count)

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        found, labels = self._answers(model, batch)
        return number_sums(found[:, 0], labels)

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        return number_scores(sums)

    def baseline(self, name: str) -> Baseline:
        """The median of the training rows: of all constants the one with the smallest absolute error."""
        labels = self._labelled(name).labels
        assert labels is not None
        chosen = torch.from_numpy(np.array(labels[self._eval_rows(name)]))
        scores = number_scores(number_sums(torch.full_like(chosen, float(np.median(self._train_labels))), chosen))
        return Baseline("median of training", scores["mae"], scores["error"])
