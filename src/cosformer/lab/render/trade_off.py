"""Figure 1: score, speed and memory, of our own runs and benchmarks and of the paper's tables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cosformer.lab import numbers as paper
from cosformer.lab.records import Results, Run
from cosformer.lab.render.chart import Bubble, draw_bubbles
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.palette import styles
from cosformer.lab.render.paper_tables import average, scores

LENGTH = 2000  # the longest where every model of the paper runs
_LABELS = {"score": "accuracy, mean of the tasks (%)", "speed": f"training steps per second at {LENGTH:,}"}


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
    drawn = draw_bubbles(bubbles, title=title, x_label=speed, y_label=score, alt=alt)
    return Figure(name, drawn, "svg", alt, caption)


def our_trade_offs(runs: Sequence[Run], results: Results) -> list[TradeOff]:
    """The average accuracy over the Long-Range Arena recipes that every attention shown was trained on, against training
    steps per second and peak memory in ``results`` of ``bench text``, at 2,000 bytes or the longest measured."""
    timed = {(m.attention, m.length): m.milliseconds for m in results.find(kind="speed", mode="training")}
    lengths = [n for _, n in timed if n is not None]
    length = LENGTH if LENGTH in lengths else max(lengths, default=0)
    runs = [run for run in runs if run.recipe.startswith("lra-") and timed.get((run.attention, length))]
    column = average("", list(dict.fromkeys(run.recipe for run in runs)), runs)
    found = []
    for name in dict.fromkeys(run.attention for run in runs):
        score, memory = (
            scores(runs, column, name),
            results.one(kind="memory", mode="training", attention=name, length=length),
        )
        if score.values:
            speed = 1e3 / (timed[name, length] or math.inf)
            found.append(TradeOff(name, score.mean, speed, None if memory is None else memory.value))
    return found


def our_trade_off(runs: Sequence[Run], results: Results) -> Figure | None:
    """Figure 1, ours; None where no attention has both scores and speeds."""
    found = our_trade_offs(runs, results)
    title = "Figure 1, ours: mean of our Long-Range Arena tasks"
    return trade_off(found, name="figure1", title=title, **_LABELS) if found else None


def paper_trade_offs() -> list[TradeOff]:
    """From the paper's tables 4 and 5; the memory that its figure draws is tabulated nowhere."""
    pairs = {name: (x["score"], x["speed"]) for name, x in paper.FIGURE1.items()}
    return [TradeOff(name, a, b, None) for name, (a, b) in pairs.items() if a is not None and b is not None]


def paper_trade_off() -> Figure:
    title = "Figure 1 from the paper's tables 4 and 5"
    return trade_off(paper_trade_offs(), name="figure1-paper", title=title, **_LABELS)
