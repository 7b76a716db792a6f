"""Language modelling: a stream of text cut into blocks, every token guessed once from those before it in its block."""

import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cosformer.data.dataset import Split
from cosformer.data.masking import IGNORED
from cosformer.data.sequences import LMBlocks
from cosformer.data.vocabulary import Ids, Letters
from cosformer.experiment import DataConfig
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.tasks.base import Baseline, Task
from cosformer.tasks.scores import count_words, mean_and_error, row_sums, text_of, unigram_nats


class LM(Task):
    """Rows are blocks of ``data.length`` tokens of the stream; the first input of the stream is the end token.

    Evaluations: a split's name scores its blocks each on its own; ``valid@C`` slides a window of ``data.length`` tokens
    so that every target but those of the first window has at least C tokens before it. Both score each target once, and
    with ``data.eval_rows`` the same text: that many blocks.

    Scores: ``loss`` in nats and ``perplexity`` per token; ``word_perplexity`` per word and line end, ``bits_per_byte``
    per byte of the text that the scored tokens stand for, whatever the vocabulary (see ``scores.text_of``);
    ``bits_per_token`` instead of the two where tokens are letters of an alphabet, or ids. With ``data.full_test`` also
    ``loss@64``, the loss at positions 64 to 127 of a block, and so on: what more context is worth.
    """

    name = "lm"
    metric = "loss"
    higher_is_better = False
    head = CosformerForCausalLM

    def __init__(self, data: DataConfig, seed: int = 0) -> None:
        super().__init__(data, seed)
        if data.length is None:
            raise ValueError("task 'lm' needs data.length, the tokens of a block; say 512")
        if self.dataset.vocabulary.eos_id is None:
            raise ValueError(f"data set {data.name!r} has no end token, so it is no stream of text; try 'wikitext2'")
        if "train" not in self.dataset.splits:
            raise ValueError(f"data set {data.name!r} has no split 'train' here, only {', '.join(self.dataset.splits)}")
        self.length, self.start_id = data.length, self.dataset.vocabulary.eos_id
        self.train_blocks = LMBlocks(self.dataset.splits["train"], self.length, self.start_id)
        self._sizes: dict[str, tuple[int, int]] = {}

    def model_fields(self) -> dict[str, Any]:
        # text starts behind an end token in training, so generation starts there too
        return super().model_fields() | {"is_decoder": True, "cls_token": False, "bos_token_id": self.start_id}

    # --- training rows

    @property
    def train_rows(self) -> int:
        return len(self.train_blocks)

    def train_row(self, index: int, epoch: int) -> dict[str, Any]:
        inputs, targets = self.train_blocks[index]
        return {"inputs": inputs, "targets": targets}

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        batch = padded_blocks([row["inputs"] for row in rows], [row["targets"] for row in rows], self.start_id)
        return batch | {"labels": batch["input_ids"]}

    def tokens(self, batch: dict[str, Tensor]) -> int:
        return int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()

    # --- scores

    @property
    def final(self) -> list[str]:
        """Each split without and with context: 400 tokens as fairseq's tables, or three quarters of shorter blocks."""
        if self.data.full_test:  # windows that overlap would cost several times as much, and positions tell as much
            return super().final
        context = 400 if self.length > 400 else self.length * 3 // 4
        return [name for split in super().final for name in (split, f"{split}@{context}")]

    def eval_size(self, name: str) -> int:
        _, context, scored = self._evaluation(name)
        return 1 + max(0, -(-(scored - self.length) // (self.length - context)))

    def eval_batch(self, name: str, start: int, stop: int) -> dict[str, Tensor]:
        split, context, scored = self._evaluation(name)
        blocks = LMBlocks(split, self.length, self.start_id)
        inputs, targets = [], []
        for index in range(start, min(stop, self.eval_size(name))):
            first, last = self._scored(index, context, scored)
            x, y = blocks.window(max(0, first - context), last)
            y[: len(y) - (last - first)] = IGNORED
            inputs.append(x)
            targets.append(y)
        return padded_blocks(inputs, targets, self.start_id)

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        losses = model(**batch, reduction="none", use_cache=False).loss
        counted = batch["shift_labels"] != IGNORED
        nats, tokens = losses.double().cpu().numpy(), counted.cpu().numpy()
        sums = row_sums(nats.sum(1), tokens.sum(1))
        if self.data.full_test:
            for first, last in position_ranges(self.length):
                sums[f"nats@{first}"] = float(nats[:, first:last].sum())
                sums[f"tokens@{first}"] = float(tokens[:, first:last].sum())
        return sums

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        loss, error = mean_and_error(sums)
        scores = {"loss": loss, "error": error, "perplexity": _exp(loss)}
        if isinstance(self.dataset.vocabulary, Letters | Ids):
            scores["bits_per_token"] = loss / math.log(2)
        else:
            words, size = self._text_size(name)
            scores |= {
                "word_perplexity": _exp(sums["nats"] / words),
                "bits_per_byte": sums["nats"] / math.log(2) / size,
            }
        places = [key for key in sums if key.startswith("nats@")]
        counts = {key: sums[key.replace("nats", "tokens")] for key in places}
        return scores | {key.replace("nats", "loss"): sums[key] / counts[key] for key in places if counts[key]}

    def baseline(self, name: str) -> Baseline:
        split, context, scored = self._evaluation(name)
        nats = self._unigram[split.tokens.flat[:scored]]
        bounds = [self._scored(i, context, scored)[0] for i in range(self.eval_size(name))]
        sums = row_sums(np.add.reduceat(nats, bounds), np.diff([*bounds, scored]))
        return Baseline("unigram", *mean_and_error(sums))

    @cached_property
    def _unigram(self) -> np.ndarray:
        return unigram_nats(self.dataset.splits["train"].tokens.flat, np.ones(self.dataset.vocab_size, bool))

    def _evaluation(self, name: str) -> tuple[Split, int, int]:
        """The split, the context C and the number of targets scored, always the first of the stream."""
        split, at, context = name.partition("@")
        if split not in self.dataset.splits or (at and not context.isdigit()):
            known = ", ".join(self.dataset.splits)
            raise ValueError(
                f"unknown evaluation {name!r}; a split ({known}), or one with a context, as 'valid@{self.length // 2}'"
            )
        tokens = int(context) if at else 0
        if tokens >= self.length:
            raise ValueError(
                f"evaluation {name!r}: a context of {tokens} leaves no target in windows of data.length={self.length}; "
                f"use less, as {split}@{self.length * 3 // 4}"
            )
        part = self.dataset.splits[split]
        scored = len(part.tokens.flat)
        if not scored:
            raise ValueError(f"evaluation {name!r}: split {split!r} of {self.data.name!r} is empty")
        most = self.most_rows(name)
        return part, tokens, scored if most is None else min(scored, most * self.length)

    def _scored(self, index: int, context: int, scored: int) -> tuple[int, int]:
        """The targets that window ``index`` scores: all of the first window, later ones what follows the context."""
        stride = self.length - context
        last = self.length + index * stride
        return (last - stride if index else 0), min(last, scored)

    def _text_size(self, name: str) -> tuple[int, int]:
        """Words and bytes of the text that is scored."""
        if name not in self._sizes:
            split, _, scored = self._evaluation(name)
            text = text_of(self.dataset.vocabulary, np.asarray(split.tokens.flat[:scored]))
            self._sizes[name] = count_words(text), len(text)
        return self._sizes[name]


def position_ranges(length: int) -> list[tuple[int, int]]:
    """Ranges of positions of a block, each twice as long as the one before: (0, 8), (8, 16), (16, 32) ..."""
    starts = [0, *(8 << i for i in range(length.bit_length()) if 8 << i < length)]
    return list(itertools.pairwise([*starts, length]))


def padded_blocks(inputs: list[np.ndarray], targets: list[np.ndarray], pad_id: int) -> dict[str, Tensor]:
    """Rows side by side; shorter ones, at the end of a stream, are filled up behind, masked and not scored."""
    shape = len(inputs), max(len(row) for row in inputs)
    ids, goals = np.full(shape, pad_id, np.int64), np.full(shape, IGNORED, np.int64)
    mask = np.zeros(shape, np.int64)
    for i, (x, y) in enumerate(zip(inputs, targets, strict=True)):
        ids[i, : len(x)], goals[i, : len(y)], mask[i, : len(x)] = x, y, 1
    batch = {"input_ids": torch.from_numpy(ids), "shift_labels": torch.from_numpy(goals)}
    return batch if mask.all() else batch | {"attention_mask": torch.from_numpy(mask)}


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf
