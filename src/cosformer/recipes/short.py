"""How recipes of minutes train: a rate that rises over a tenth of the updates and falls in a line, clipped gradients."""

from typing import Any

from cosformer.experiment import TrainConfig


def short_training(*, steps: int, **others: Any) -> TrainConfig:
    return TrainConfig(steps=steps, schedule="linear", warmup=steps // 10, clip=1.0, log_every=10, **others)
