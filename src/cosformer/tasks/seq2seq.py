"""From one text to another: an encoder reads the source, a decoder writes the target token by token."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.data.dataset import Ragged, Split
from cosformer.data.masking import IGNORED
from cosformer.models.encoder_decoder import CosformerForConditionalGeneration
from cosformer.tasks.base import Baseline
from cosformer.tasks.match import Match
from cosformer.tasks.scores import mean_and_error, row_sums, unigram_nats


class Seq2seq(Match):
    """Source and target texts. ``loss`` in nats and ``perplexity`` per target token, the end token included."""

    name = "seq2seq"
    metric = "loss"
    higher_is_better = False
    head = CosformerForConditionalGeneration

    def _check_labels(self) -> None:
        if self._labelled("train").second is None or self.dataset.num_classes is not None:
            raise ValueError(f"data set {self.data.name!r} has no text to write; task 'seq2seq' needs target='text'")

    def _taught(self, split: Split) -> Any:
        return split.second

    def _columns(self) -> list[Ragged]:
        return [
            column
            for part in self.dataset.splits.values()
            for column in (part.tokens, part.second)
            if column is not None
        ]

    def model_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"is_encoder_decoder": True, "cls_token": False, "is_decoder": False}
        fields |= {"decoder_start_token_id": self.dataset.vocabulary.bos_id}
        known = super().model_fields()
        known.pop("num_labels")
        return known | fields

    def _label(self, split: Split, index: int) -> None:
        return None

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        ids, mask = self._padded([row["tokens"] for row in rows])
        written, there = self._padded([row["second"] for row in rows])
        # the decoder begins behind the start token, which the target has already
        labels = torch.where(there[:, 1:] == 1, written[:, 1:], IGNORED)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        labels = batch["labels"]
        logits = model(**batch, use_cache=False).logits.float()
        nats = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none").double()
        return row_sums(nats.sum(1).cpu().numpy(), (labels != IGNORED).sum(1).cpu().numpy())

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        loss, error = mean_and_error(sums)
        return {"loss": loss, "error": error, "perplexity": math.exp(min(loss, 700.0))}

    def baseline(self, name: str) -> Baseline:
        split = self._labelled(name)
        rows = [self._row(split, int(i))["second"][1:] for i in self._eval_rows(name)]
        nats = [self._unigram[row.astype(np.int64)] for row in rows]
        sums = row_sums(np.array([n.sum() for n in nats]), np.array([len(n) for n in nats]))
        return Baseline("unigram", *mean_and_error(sums))

    @cached_property
    def _unigram(self) -> np.ndarray:
        second = self._labelled("train").second
        assert second is not None
        return unigram_nats(second.flat, np.ones(self.dataset.vocab_size, bool))
