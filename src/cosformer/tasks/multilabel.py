"""Several classes of one text: each is decided by itself."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cosformer.data.dataset import Split
from cosformer.tasks.base import Baseline
from cosformer.tasks.classify import Classify, mean_by
from cosformer.tasks.scores import mean_and_error, row_sums


class Multilabel(Classify):
    """Rows with any number of classes. ``f1``: over all decisions (micro), with its standard error over rows;
    ``exact``: the share of rows whose classes are all right."""

    name = "multilabel"
    metric = "f1"
    higher_is_better = True

    def _check_labels(self) -> None:
        if self.dataset.num_classes is None or self._labelled("train").marks is None:
            raise ValueError(
                f"data set {self.data.name!r} has one class a row; task 'multilabel' needs target='classes'"
            )

    def _taught(self, split: Split) -> Any:
        return split.marks

    def model_fields(self) -> dict[str, Any]:
        return super().model_fields() | {"problem_type": "multi_label_classification"}

    def _label(self, split: Split, index: int) -> list[float]:
        assert split.marks is not None and self.dataset.num_classes is not None
        found = np.zeros(self.dataset.num_classes, np.float32)
        found[split.marks[index].astype(np.int64)] = 1
        return found.tolist()

    def _average(self, logits: Tensor, document: Tensor, count: int) -> Tensor:
        return torch.logit(mean_by(logits.sigmoid(), document, count))

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        logits, labels = self._answers(model, batch)
        return _decision_sums(logits.cpu().numpy() > 0, labels.cpu().numpy() > 0)

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        f1, error = mean_and_error(sums) if sums["tokens"] else (0.0, 0.0)
        return {"f1": f1, "error": error, "exact": sums["exact"] / sums["rows"]}

    def baseline(self, name: str) -> Baseline:
        """The classes that most training rows have, or the most frequent one."""
        train, split = self._labelled("train"), self._labelled(name)
        shares = np.mean([self._label(train, i) for i in range(len(train))], axis=0)
        chosen = (shares > 0.5) | (shares == shares.max())
        true = np.array([self._label(split, int(i)) for i in self._eval_rows(name)]) > 0
        sums = _decision_sums(np.tile(chosen, (len(true), 1)), true)
        return Baseline("most frequent classes", *mean_and_error(sums))


def _decision_sums(found: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """The parts of F1, which is a ratio of sums over rows (2 hits / (predicted + true)), and of exact match."""
    hits, total = 2 * (found & true).sum(1), found.sum(1) + true.sum(1)
    return row_sums(hits, total) | {"exact": float((found == true).all(1).sum())}
