"""Tagging: a class for each word of a row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cosformer.data.dataset import Split
from cosformer.data.masking import IGNORED
from cosformer.models.token_classification import CosformerForTokenClassification
from cosformer.tasks.base import Baseline
from cosformer.tasks.classify import Classify
from cosformer.tasks.scores import confusion_matrix, confusion_sums, macro_f1, mean_and_error, row_sums


class Tag(Classify):
    """A word's tag stands at its first token; the other tokens do not count. ``accuracy``: of words, with its standard
    error over rows, whose words depend on each other; ``macro_f1``: the mean of F1 over the tags."""

    name = "tag"
    metric = "accuracy"
    higher_is_better = True
    head = CosformerForTokenClassification

    def _check_labels(self) -> None:
        if self.dataset.num_classes is None or self._labelled("train").marks is None:
            raise ValueError(f"data set {self.data.name!r} has no tags; task 'tag' needs target='tags'")
        if self.data.long == "windows":
            raise ValueError(
                "data.long=windows is for one class of a document; rows of tags are cut (data.long=cut) or refused"
            )

    def _taught(self, split: Split) -> Any:
        return split.marks

    def _row(self, split: Split, index: int) -> dict[str, Any]:
        assert split.marks is not None
        # cut alike, without the end token: what is left keeps its place
        tokens, marks = split.tokens[index][: self.length], split.marks[index][: self.length]
        return {"tokens": tokens, "label": marks.astype(np.int64) - 1}

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        ids, mask = self._padded([row["tokens"] for row in rows])
        labels = torch.full(ids.shape, IGNORED)
        for i, row in enumerate(rows):
            tags = torch.from_numpy(row["label"])
            labels[i, : len(tags)] = torch.where(tags < 0, IGNORED, tags)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        labels = batch["labels"]
        found = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
        return self._sums(found.cpu().numpy(), labels.cpu().numpy())

    def _sums(self, found: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        counted, classes = labels != IGNORED, self.dataset.num_classes or 0
        sums = row_sums(((found == labels) & counted).sum(1), counted.sum(1))
        return sums | confusion_sums(torch.from_numpy(found[counted]), torch.from_numpy(labels[counted]), classes)

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        accuracy, error = mean_and_error(sums)
        confusion = confusion_matrix(sums)
        assert confusion is not None
        return {"accuracy": accuracy, "error": error, "macro_f1": macro_f1(confusion)}

    def class_weights(self) -> Tensor:
        marks, classes = self._labelled("train").marks, self.dataset.num_classes
        assert marks is not None and classes is not None
        counts = np.bincount(marks.flat, minlength=classes + 1)[1:]  # 0 is no tag
        return int(counts.sum()) / (classes * torch.from_numpy(counts).clamp(min=1).float())

    def baseline(self, name: str) -> Baseline:
        marks = self._labelled("train").marks
        assert marks is not None
        majority = int(np.bincount(marks.flat[marks.flat > 0]).argmax()) - 1
        labels = self.eval_batch(name, 0, self.eval_size(name))["labels"].numpy()
        scores = self.scores(name, self._sums(np.full_like(labels, majority), labels))
        return Baseline("most frequent tag", scores["accuracy"], scores["error"])
