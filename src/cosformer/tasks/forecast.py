"""Forecasting: the next step of a series from those before it, and several steps one after the other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cosformer.data.dataset import Split
from cosformer.data.padding import pad_values
from cosformer.data.vocabulary import Channels
from cosformer.experiment import DataConfig
from cosformer.models.forecasting import CosformerForForecasting
from cosformer.tasks.base import Baseline, Task
from cosformer.tasks.scores import mean_and_error, row_sums

_MOST_CHANNELS = 10  # that have a score of their own


class Forecast(Task):
    """Rows are windows of ``data.length`` steps, in training from anywhere in a series, drawn anew in every epoch.

    Evaluations: a split's name scores the forecast of each step from those before it; ``valid@24`` forecasts 24 steps
    at a time from the steps before them, one by one from the state, and goes on behind them. Both score every step of
    the split once.

    Scores: ``mae``, the mean absolute error in standard deviations of the training readings, with its standard error
    over windows, ``rmse`` likewise, and ``mae_NAME`` of each channel in its own units.
    """

    name = "forecast"
    metric = "mae"
    higher_is_better = False
    head = CosformerForForecasting

    def __init__(self, data: DataConfig, seed: int = 0) -> None:
        super().__init__(data, seed)
        vocabulary, train = self.dataset.vocabulary, self.dataset.splits["train"]
        if not isinstance(vocabulary, Channels) or self.dataset.options.get("target") != "next":
            raise ValueError(
                f"data set {data.name!r} has no series to go on with; task 'forecast' needs 'series' with target='next'"
            )
        self.channels = vocabulary
        self.length = data.length or int(train.tokens.lengths.max())
        if self.length < 2:
            raise ValueError(
                f"data.length={self.length}: a window needs a step to forecast from and one to forecast; at least 2"
            )
        windows = np.maximum(1, -(-train.tokens.lengths // self.length)) * (train.tokens.lengths > 1)
        self._series = np.repeat(np.arange(len(train)), windows)  # of each training row

    @property
    def horizon(self) -> int:
        """Steps forecast at once in the evaluations that a run makes at its end."""
        return max(1, min(24, self.length // 4))

    def model_fields(self) -> dict[str, Any]:
        fields = {"is_decoder": True, "cls_token": False, "num_input_channels": len(self.channels.names)}
        return (
            super().model_fields() | fields | {"channel_mean": self.channels.mean, "channel_scale": self.channels.scale}
        )

    # --- training rows

    @property
    def train_rows(self) -> int:
        return len(self._series)

    def train_row(self, index: int, epoch: int) -> dict[str, Any]:
        series = self.dataset.splits["train"].tokens[int(self._series[index])]
        start = int(np.random.default_rng([self.seed, epoch, index]).integers(0, max(1, len(series) - self.length + 1)))
        return {"values": series[start : start + self.length], "scored": 1}

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        values, mask = pad_values([row["values"] for row in rows])
        labels = np.where(mask[:, :, None], values, np.nan)
        for row, label in zip(rows, labels, strict=True):
            label[: row["scored"]] = np.nan
        arrays = {"input_values": values, "attention_mask": mask.astype(np.int64), "labels": labels.astype(np.float32)}
        return {key: torch.from_numpy(array) for key, array in arrays.items()}

    def tokens(self, batch: dict[str, Tensor]) -> int:
        return int(batch["attention_mask"].sum())

    # --- scores

    @property
    def final(self) -> list[str]:
        return [name for split in super().final for name in (split, f"{split}@{self.horizon}")]

    def eval_size(self, name: str) -> int:
        return self.at_most(name, len(self._windows(name)[1]))

    def eval_batch(self, name: str, start: int, stop: int) -> dict[str, Tensor]:
        """Windows with labels; of forecasts the steps before them, padded on the left, and the ``targets``."""
        split, windows, steps = self._windows(name)
        chosen = [
            windows[i * len(windows) // self.eval_size(name)] for i in range(start, min(stop, self.eval_size(name)))
        ]
        if not steps:
            rows = [{"values": split.tokens[i][first:last], "scored": at - first} for i, first, at, last in chosen]
            return self.collate(rows)
        values, mask = pad_values([split.tokens[i][first:at] for i, first, at, _ in chosen], left=True)
        targets = np.full((len(chosen), steps, values.shape[-1]), np.nan, np.float32)
        for target, (i, _, at, last) in zip(targets, chosen, strict=True):
            target[: last - at] = split.tokens[i][at:last]
        arrays = {"input_values": values, "attention_mask": mask.astype(np.int64), "targets": targets}
        return {key: torch.from_numpy(array) for key, array in arrays.items()}

    def sums(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, float]:
        values, mask = batch["input_values"], batch["attention_mask"]
        if "targets" in batch:
            found: Any = model.forecast(values, batch["targets"].shape[1], mask)  # pyright: ignore[reportCallIssue]
            return self._sums(found, batch["targets"])
        return self._sums(model(input_values=values, attention_mask=mask).logits[:, :-1], batch["labels"][:, 1:])

    def _sums(self, found: Tensor, targets: Tensor) -> dict[str, float]:
        errors = ((found.double() - targets.double()) / found.new_tensor(self.channels.scale)).abs().cpu().numpy()
        counted = np.isfinite(errors)
        errors = np.where(counted, errors, 0.0)
        sums = row_sums(errors.sum((1, 2)), counted.sum((1, 2))) | {"squares": float((errors**2).sum())}
        return sums | {f"channel {i}": float(total) for i, total in enumerate(errors.sum((0, 1)))}

    def scores(self, name: str, sums: dict[str, float]) -> dict[str, float]:
        mae, error = mean_and_error(sums)
        names, steps = self.channels.names, sums["tokens"] / len(self.channels.names)
        scores = {"mae": mae, "error": error, "rmse": (sums["squares"] / sums["tokens"]) ** 0.5}
        if len(names) > _MOST_CHANNELS:
            return scores
        scales = zip(names, self.channels.scale, strict=True)
        return scores | {f"mae_{name}": sums[f"channel {i}"] / steps * scale for i, (name, scale) in enumerate(scales)}

    def baseline(self, name: str) -> Baseline:
        """Nothing changes: every forecast is the last value that is known."""
        sums: dict[str, float] = {}
        for start in range(0, self.eval_size(name), 256):
            batch = self.eval_batch(name, start, start + 256)
            values = batch["input_values"]
            if "targets" in batch:
                part = self._sums(values[:, -1:].expand_as(batch["targets"]), batch["targets"])
            else:
                part = self._sums(values[:, :-1], batch["labels"][:, 1:])
            sums = {key: sums.get(key, 0.0) + value for key, value in part.items()}
        return Baseline("last value", *mean_and_error(sums))

    def _windows(self, name: str) -> tuple[Split, list[tuple[int, int, int, int]], int]:
        """The split; windows (series, first step, first scored, end); steps to forecast at once, 0: each from all."""
        part, at, text = name.partition("@")
        if part not in self.dataset.splits or (at and not text.isdigit()) or (at and not 0 < int(text) < self.length):
            raise ValueError(
                f"unknown evaluation {name!r}; a split ({', '.join(self.dataset.splits)}), or one with the steps to "
                f"forecast at once, from 1 to {self.length - 1}, as 'valid@{self.horizon}'"
            )
        steps, split = int(text) if at else 0, self.dataset.splits[part]
        stride = steps or max(1, self.length // 4)
        windows = []
        assert split.labels is not None
        for i, (length, scored) in enumerate(zip(split.tokens.lengths.tolist(), split.labels.tolist(), strict=True)):
            for start in range(max(1, scored), length, stride):
                stop = min(start + stride, length)
                windows.append((i, max(0, (start + stride if steps else stop) - self.length), start, stop))
        return split, windows, steps
