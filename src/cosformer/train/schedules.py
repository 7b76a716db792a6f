"""Learning rates: the share of the peak at each update, by schedule."""

import math
from collections.abc import Callable
from typing import Any

from cosformer.experiment import TrainConfig

CYCLE_GROWTH, CYCLE_SHRINK = 2.0, 0.75  # of the cosine cycles: each is twice as long and three quarters as high


def schedule(train: TrainConfig) -> Callable[[int], float]:
    """A function of the number of updates done (0 for the first update) to learning rate over ``train.lr``.

    All rise linearly over ``warmup`` updates. Then ``constant``; ``linear`` down to ``min_lr`` at the last update;
    ``cosine`` down to ``min_lr`` over ``cycle`` updates (by default all that are left), starting over after each;
    ``cosine_cycles``, the same with each cycle twice as long and three quarters as high; ``inverse_sqrt``, the peak
    times sqrt(warmup / update).
    """
    if train.lr == 0:
        return lambda done: 0.0
    floor = train.min_lr / train.lr
    period = train.cycle or max(train.steps - train.warmup, 1)
    start = max(train.warmup, 1)
    shapes: dict[str, Callable[[int], float]] = {
        "constant": lambda done: 1.0,
        "linear": lambda done: floor + (1 - floor) * max(0.0, 1 - done / period),
        "cosine": lambda done: floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (done / period % 1))),
        "cosine_cycles": lambda done: _cosine_cycles(done, period, floor),
        "inverse_sqrt": lambda done: math.sqrt(start / (start + done)),
    }
    shape = shapes[train.schedule]
    return lambda done: (done + 1) / train.warmup if done < train.warmup else shape(done - train.warmup)


def _cosine_cycles(done: int, period: int, floor: float) -> float:
    cycle = 0
    while done >= period:
        done, period, cycle = done - period, int(period * CYCLE_GROWTH), cycle + 1
    shrink = CYCLE_SHRINK**cycle
    return shrink * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done / period)))


def set_rates(optimizer: Any, scheduler: Any, train: TrainConfig) -> None:
    """Apply ``train`` to an optimizer and ``LambdaLR`` loaded from a checkpoint; no-op if nothing changed."""
    scheduler.base_lrs = [train.lr for _ in scheduler.base_lrs]
    for group, factor in zip(optimizer.param_groups, scheduler.lr_lambdas, strict=True):
        group |= {"initial_lr": train.lr, "lr": train.lr * factor(scheduler.last_epoch)}
        group["weight_decay"] = train.weight_decay
        if train.optimizer == "nag":
            group["momentum"] = train.momentum
        else:
            group |= {"betas": (train.beta1, train.beta2), "eps": train.eps}
