"""Matching of two documents: both go through one encoder, and their vectors meet in the classifier."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from cosformer.data.dataset import Ragged, Split
from cosformer.models.classification import CosformerForPairClassification
from cosformer.tasks.classify import Classify


class Match(Classify):
    """As classification, of rows that hold two documents; each side is padded to its own longest."""

    name = "match"
    head = CosformerForPairClassification

    def _columns(self) -> list[Ragged]:
        second = [part.second for part in self.dataset.splits.values() if part.second is not None]
        if not second:
            raise ValueError(
                f"data set {self.data.name!r} has one document a row; task 'match' needs two, as 'retrieval' has: use"
                " task 'classify'"
            )
        if self.data.long == "windows":
            raise ValueError("data.long=windows is for single documents; pairs are cut (data.long=cut) or refused")
        return [*(part.tokens for part in self.dataset.splits.values()), *second]

    def train_lengths(self) -> np.ndarray:
        second = self._labelled("train").second
        assert second is not None
        return super().train_lengths() + np.minimum(second.lengths, self.length)

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        ids, mask = self._padded([row["second"] for row in rows])
        return super().collate(rows) | {"input_ids_b": ids, "attention_mask_b": mask}

    def _row(self, split: Split, index: int) -> dict[str, Any]:
        assert split.second is not None
        return super()._row(split, index) | {"second": self._fitting(split.second[index])}
