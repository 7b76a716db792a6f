"""Figure 1: score, speed and memory, of our own runs and benchmarks and of the paper's tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosformer.lab import numbers as paper
from cosformer.lab.bench.results import rows_of
from cosformer.lab.render.chart import Bubble, draw_bubbles
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.outcomes import Outcome, mean
from cosformer.lab.render.palette import styles

LENGTH = 2000  # the longest where every model of the paper runs


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


def our_trade_off(outcomes: Sequence[Outcome], results: dict[str, Any]) -> Figure | None:
    """The average accuracy over the Long-Range Arena recipes that every attention shown was trained on, against training
    steps per second and peak memory at LENGTH bytes in ``results`` of ``bench text``; None without two attentions."""
    rows = {row.id: row for row in rows_of(results)}
    prefix = f"text/training/{LENGTH}/"
    times = {key.removeprefix(prefix): row.milliseconds for key, row in rows.items() if key.startswith(prefix)}
    recipes = dict.fromkeys(x.recipe for x in outcomes if x.recipe.startswith("lra-"))
    scores = {
        name: {r: found.value for r in recipes if (found := mean(outcomes, r, name, "test", "accuracy")) is not None}
        for name in times
        if name in times[name]
    }
    scores = {name: found for name, found in scores.items() if found}
    if len(scores) < 2:
        return None
    shared = [recipe for recipe in recipes if all(recipe in found for found in scores.values())]
    if not shared:
        return None
    found = []
    for name, of_recipe in scores.items():
        memory = rows.get(f"text/memory/training/{LENGTH}/{name}")
        score = 100 * sum(of_recipe[recipe] for recipe in shared) / len(shared)
        found.append(TradeOff(name, score, 1e3 / times[name][name], None if memory is None else memory.value))
    names = ", ".join(recipe.removeprefix("lra-").removesuffix("-small") for recipe in shared)
    speed = f"training steps per second at {LENGTH:,}"
    return trade_off(found, name="figure1", title=f"Figure 1, ours: {names}", score="accuracy (%)", speed=speed)


def paper_trade_off() -> Figure:
    """From the paper's tables 4 and 5; the memory that its figure draws is tabulated nowhere."""
    pairs = {name: (x["score"], x["speed"]) for name, x in paper.FIGURE1.items()}
    found = [TradeOff(name, a, b, None) for name, (a, b) in pairs.items() if a is not None and b is not None]
    title = "Figure 1 from the paper's tables 4 and 5"
    speed = "training steps per second at 2K"
    return trade_off(found, name="figure1-paper", title=title, score="LRA average (%)", speed=speed)
