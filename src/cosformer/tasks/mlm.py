"""Masked language modelling: whole lines packed into rows, some tokens hidden and guessed from both sides."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cosformer.data.masking import IGNORED, mask_tokens
from cosformer.data.padding import pad_rows
from cosformer.data.sequences import PackedLines
from cosformer.experiment import DataConfig
from cosformer.models.masked_lm import CosformerForMaskedLM
from cosformer.tasks.base import Baseline, Task
from cosformer.tasks.scores import mean_and_error, row_sums, unigram_nats

EVAL_SEED = 2022  # of the places masked in an evaluation: the same for every model, whatever its own seed
EVAL_SHARE = 0.15  # of the tokens


class MLM(Task):
    """Rows are whole lines packed behind one ``<s>``, up to ``data.length`` tokens; ``data.masked`` of them are chosen
    anew in every epoch, and 15 % in an evaluation.

    Special tokens are never chosen. Where the vocabulary lacks ``<s>``, ``<pad>`` or ``<mask>``, the model's vocabulary
    has them behind the data's own ids, in this order.
    """

    name = "mlm"
    metric = "loss"
    higher_is_better = False
    head = CosformerForMaskedLM

    def __init__(self, data: DataConfig, seed: int = 0) -> None:
        super().__init__(data, seed)
        if data.length is None:
            raise ValueError("task 'mlm' needs data.length, the most tokens of a row; say 512")
        if "train" not in self.dataset.splits:
            raise ValueError(f"data set {data.name!r} has no split 'train' here, only {', '.join(self.dataset.splits)}")
        if not 0 < data.masked < 1:
            raise ValueError(f"data.masked={data.masked}; it must be between 0 and 1")
        self.length = data.length
        vocabulary = self.dataset.vocabulary
        self.vocab_size = vocabulary.size
        self.bos_id, self.pad_id, self.mask_id = (
            self._id(i) for i in (vocabulary.bos_id, vocabulary.pad_id, vocabulary.mask_id)
        )
        special = [self.bos_id, self.pad_id, self.mask_id]
        special += [] if vocabulary.eos_id is None else [vocabulary.eos_id]
        self.choosable = np.ones(self.vocab_size, bool)
        self.choosable[special] = False
        drawable = self.choosable.copy()
        # <unk> is a word of word-level texts, and may be asked for; it makes no sense as a wrong word
        drawable[[] if vocabulary.unk_id is None else [vocabulary.unk_id]] = False
        self.random_ids = np.flatnonzero(drawable)
        self.packed = {
            name: PackedLines(split, self.length, self.bos_id) for name, split in self.dataset.splits.items()
        }

    def _id(self, known: int | None) -> int:
        """The id, or the next behind the vocabulary."""
        if known is None:
            self.vocab_size += 1
        return self.vocab_size - 1 if known is None else known

    def model_fields(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.length,
            "is_decoder": False,
            "cls_token": False,
            "sparse_prediction": True,
            "pad_token_id": self.pad_id,
            "bos_token_id": self.bos_id,
            "eos_token_id": self.dataset.vocabulary.eos_id,
        }

    # --- training rows

    @property
    def train_rows(self) -> int:
        return len(self.packed["train"])

    def train_lengths(self) -> np.ndarray:
        return np.diff(self.packed["train"].bounds)

    def train_row(self, index: int, epoch: int) -> dict[str, Any]:
        rng = np.random.default_rng([self.seed, epoch, index])
        return self._masked(self.packed["train"][index], rng, self.data.masked)

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        ids, mask = pad_rows([row["inputs"] for row in rows], self.pad_id)
        labels = np.full(ids.shape, IGNORED, np.int64)
        for i, row in enumerate(rows):
            labels[i, : len(row["labels"])] = row["labels"]
        arrays = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "labels": labels}
        return {key: torch.from_numpy(value) for key, value in arrays.items()}

    def tokens(self, batch: dict[str, Tensor]) -> int:
        return int(batch["attention_mask"].sum())

    def _masked(self, ids: np.ndarray, rng: np.random.Generator, share: float) -> dict[str, Any]:
        fixed: dict[str, Any] = {"mask_id": self.mask_id, "random_ids": self.random_ids, "chance": share}
        inputs, labels = mask_tokens(ids, rng, never=~self.choosable[ids], **fixed)
        return {"inputs": inputs, "labels": labels}

    # --- scores

    def eval_size(self, name: str) -> int:
        return self.at_most(name, len(self._evaluation(name)))

    def eval_batch(self, name: str, start: int, stop: int) -> dict[str, Tensor]:
        return self.collate([self._eval_row(name, i) for i in range(start, min(stop, self.eval_size(name)))])

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        losses, counted = model(**batch, reduction="none").loss, batch["labels"] != IGNORED
        return row_sums(losses.double().sum(1).cpu().numpy(), counted.sum(1).cpu().numpy())

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        loss, error = mean_and_error(sums)
        return {"loss": loss, "error": error, "bits": loss / math.log(2)}

    def baseline(self, name: str) -> Baseline:
        labels = [self._eval_row(name, i)["labels"] for i in range(self.eval_size(name))]
        nats = [self._unigram[row[row != IGNORED]] for row in labels]
        sums = row_sums(np.array([n.sum() for n in nats]), np.array([len(n) for n in nats]))
        return Baseline("unigram", *mean_and_error(sums))

    @cached_property
    def _unigram(self) -> np.ndarray:
        """Over the tokens that may be chosen alone: nothing else is ever asked for."""
        return unigram_nats(self.dataset.splits["train"].tokens.flat, self.choosable)

    def _eval_row(self, name: str, index: int) -> dict[str, Any]:
        return self._masked(self._evaluation(name)[index], np.random.default_rng([EVAL_SEED, index]), EVAL_SHARE)

    def _evaluation(self, name: str) -> PackedLines:
        if name not in self.packed:
            raise ValueError(f"unknown evaluation {name!r}; known: {', '.join(self.packed)}")
        return self.packed[name]
