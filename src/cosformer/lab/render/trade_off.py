"""Figure 1: score, speed and memory, of our own runs and benchmarks and of the paper's tables."""

from collections.abc import Sequence
from typing import Any

from cosformer.lab import numbers as paper
from cosformer.lab.bench.results import rows_of
from cosformer.lab.render.bubble import TradeOff, trade_off
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.outcomes import Outcome, mean

LENGTH = 2000  # the longest where every model of the paper runs


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
