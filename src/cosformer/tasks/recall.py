"""Recall: a left-to-right model answers every key that comes again with the value it came with first."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cosformer.data.masking import IGNORED
from cosformer.data.recall import pair_counts
from cosformer.experiment import DataConfig
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.tasks.base import Baseline, Task
from cosformer.tasks.scores import answer_scores, answer_sums, share_error


class Recall(Task):
    """Rows of the set ``recall``; loss and accuracy count the answers only."""

    name = "recall"
    metric = "accuracy"
    higher_is_better = True
    head = CosformerForCausalLM

    def __init__(self, data: DataConfig, seed: int = 0) -> None:
        super().__init__(data, seed)
        if not {"pairs", "keys", "values"} <= self.dataset.options.keys():
            raise ValueError(f"data set {data.name!r} has no pairs to recall; task 'recall' needs the set 'recall'")
        self.pairs, self.keys, self.values = (int(self.dataset.options[key]) for key in ("pairs", "keys", "values"))
        self.counts = pair_counts(self.pairs, self.dataset.options.get("most_pairs"))
        assert self.dataset.max_length is not None
        self.length = self.dataset.max_length

    def model_fields(self) -> dict[str, Any]:
        return super().model_fields() | {"is_decoder": True, "cls_token": False}

    # --- training rows

    def train_row(self, index: int, epoch: int) -> dict[str, Any]:
        return {"tokens": self.dataset.splits["train"].tokens[index]}

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = np.stack([row["tokens"] for row in rows]).astype(np.int64)
        following = np.roll(tokens, -1, axis=1)
        asked = (tokens >= 1) & (tokens <= self.keys)
        shown_until = asked.sum(1, keepdims=True)  # every key comes twice: as many as two tokens for each pair
        asked &= np.arange(tokens.shape[1]) >= shown_until
        answers = np.where(asked, following, IGNORED)
        ids = torch.from_numpy(tokens)
        return {"input_ids": ids, "labels": ids, "shift_labels": torch.from_numpy(answers)}

    def tokens(self, batch: dict[str, Tensor]) -> int:
        return batch["input_ids"].numel()

    # --- scores

    def eval_size(self, name: str) -> int:
        if name not in self.dataset.splits:
            raise ValueError(f"unknown evaluation {name!r}; known: {', '.join(self.dataset.splits)}")
        return self.at_most(name, len(self.dataset.splits[name]))

    def eval_batch(self, name: str, start: int, stop: int) -> dict[str, Tensor]:
        split = self.dataset.splits[name]
        return self.collate([{"tokens": split.tokens[i]} for i in range(start, min(stop, self.eval_size(name)))])

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        answers = batch["shift_labels"]
        logits = model(input_ids=batch["input_ids"], use_cache=False).logits
        asked = answers != IGNORED
        sums = answer_sums(logits[asked].float(), answers[asked])
        pairs, hits = asked.sum(1), ((logits.argmax(-1) == answers) & asked).sum(1)
        for count in self.counts if len(self.counts) > 1 else ():
            of_count = pairs == count
            sums |= {f"rows@{count}": float(pairs[of_count].sum()), f"hits@{count}": float(hits[of_count].sum())}
        return sums

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        """Where rows differ in their number of pairs also ``accuracy@4``: of the rows with four."""
        counts = [count for count in self.counts if sums.get(f"rows@{count}")]
        return answer_scores(sums) | {f"accuracy@{n}": sums[f"hits@{n}"] / sums[f"rows@{n}"] for n in counts}

    def baseline(self, name: str) -> Baseline:
        """Knows which values the row holds, but not which belongs to the key: one right answer a row."""
        rows = self.eval_size(name)
        asked = int((self.eval_batch(name, 0, rows)["shift_labels"] != IGNORED).sum())
        return Baseline("one of the row's values", rows / asked, share_error(rows / asked, asked))
