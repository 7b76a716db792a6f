"""How recipes of minutes train: a rate that rises over a tenth of the updates and falls in a line, clipped gradients."""

from typing import Any

from cosformer.experiment import TrainConfig


def short_training(
    *, steps: int, batch: int, lr: float, eval_every: int, save_every: int, **others: Any
) -> TrainConfig:
    linear: dict[str, Any] = {"schedule": "linear", "warmup": steps // 10, "clip": 1.0, "log_every": 10}
    every = {"eval_every": eval_every, "save_every": save_every}
    return TrainConfig(steps=steps, batch=batch, lr=lr, **linear, **every, **others)
