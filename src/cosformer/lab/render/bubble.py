"""Figure 1: score against speed, with the memory as the area of a circle."""

from collections.abc import Sequence
from dataclasses import dataclass

from cosformer.lab.render.chart import Bubble, Chart, draw
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.palette import styles


@dataclass(frozen=True)
class TradeOff:
    """One attention: its score, its speed (steps per second) and its peak memory in MB, None where it was not measured."""

    attention: str
    score: float
    speed: float
    memory: float | None


def trade_off(found: Sequence[TradeOff], *, name: str, title: str, score: str, speed: str) -> Figure:
    """``score`` and ``speed`` label the axes. Up and to the right is better, small circles are."""
    looks = styles([item.attention for item in found])
    bubbles = [Bubble(x.attention, x.speed, x.score, x.memory, looks[x.attention][0]) for x in found]
    words = [
        f"{x.attention}: {score} {x.score:.4g}, {x.speed:.4g} {speed}, "
        + ("memory not measured." if x.memory is None else f"{x.memory:,.0f} MB.")
        for x in found
    ]
    alt = f"{title}. {' '.join(words)}"
    measured = any(x.memory is not None for x in found)
    caption = f"{title}: up is better, right is faster" + (
        ", the circle's area is the peak memory." if measured else "; the memory is not known."
    )
    svg = draw(Chart(title, speed, score, bubbles=bubbles, log_x=True), alt)
    return Figure(name, svg.encode(), "svg", alt, caption)
