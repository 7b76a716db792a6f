"""Training settings of short recipes: warm-up over a tenth of the updates, linear decay, clipping."""

from typing import Any

from cosformer.experiment import TrainConfig


def short_training(*, steps: int, **others: Any) -> TrainConfig:
    return TrainConfig(steps=steps, schedule="linear", warmup=steps // 10, clip=1.0, log_every=10, **others)
