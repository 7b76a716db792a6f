"""Learning rates: the share of the peak at each update, by schedule."""

import math
from collections.abc import Callable

from cosformer.experiment import TrainConfig

CYCLE_GROWTH, CYCLE_SHRINK = 2.0, 0.75  # of the cosine cycles: each is twice as long and three quarters as high


def schedule(train: TrainConfig) -> Callable[[int], float]:
    """A function of the number of updates done (0 for the first update) to learning rate over ``train.lr``.

    All rise linearly over ``warmup`` updates. Then ``constant``; ``linear`` down to ``min_lr`` at the last update; ``cosine``
    down to ``min_lr`` over ``cycle`` updates (by default all that are left), starting over after each; ``cosine_cycles``,
    the same with each cycle twice as long and three quarters as high; ``inverse_sqrt``, the peak times sqrt(warmup / update).
    """
    if train.lr == 0:
        return lambda done: 0.0
    shape = _SHAPES[train.schedule]
    floor = train.min_lr / train.lr
    period = train.cycle or max(train.steps - train.warmup, 1)

    def share(done: int) -> float:
        if done < train.warmup:
            return (done + 1) / train.warmup
        return shape(done - train.warmup, period, floor, train.warmup)

    return share


def _constant(done: int, period: int, floor: float, warmup: int) -> float:
    return 1.0


def _linear(done: int, period: int, floor: float, warmup: int) -> float:
    return floor + (1 - floor) * max(0.0, 1 - done / period)


def _cosine(done: int, period: int, floor: float, warmup: int) -> float:
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (done / period % 1)))


def _cosine_cycles(done: int, period: int, floor: float, warmup: int) -> float:
    cycle = 0
    while done >= period:
        done, period, cycle = done - period, int(period * CYCLE_GROWTH), cycle + 1
    shrink = CYCLE_SHRINK**cycle
    return shrink * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done / period)))


def _inverse_sqrt(done: int, period: int, floor: float, warmup: int) -> float:
    start = max(warmup, 1)
    return math.sqrt(start / (start + done))


_SHAPES: dict[str, Callable[[int, int, float, int], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_cycles": _cosine_cycles,
    "inverse_sqrt": _inverse_sqrt,
}
