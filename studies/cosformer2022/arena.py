"""The Long Range Arena at its own lengths with small models: scores with the time and memory of each run."""

import statistics
from collections.abc import Sequence

from cosformer.report.figure import Figure
from cosformer.report.table import Table
from cosformer.runs import NOT_RUN, Run
from studies.cosformer2022.blocks import BLOCKS
from studies.cosformer2022.claims import ARENA, ARENA_IMAGE, ARENA_LISTOPS, ARENA_TEXT, ARENA_TEXT_LONG, accuracy
from studies.cosformer2022.drawings import TradeOff, trade_off
from studies.cosformer2022.ledger import seed_scores

COLUMNS = {
    ARENA_LISTOPS: "ListOps, to 2,000 tokens",
    ARENA_TEXT: "Text, to 1,024 bytes",
    ARENA_TEXT_LONG: "Text, to 4,096 bytes",
    ARENA_IMAGE: "Image, 1,024 pixels",
}
NAMES = tuple(dict.fromkeys(name for recipe in COLUMNS for name in BLOCKS["T"][recipe]))
SPEED = "tokens per second of one core, in training"


def table(lines: Sequence[Run]) -> str:
    """Accuracy, minutes of one core and peak memory: means over the seeds."""
    if not any(run.recipe in COLUMNS for run in lines):
        return f"{NOT_RUN.capitalize()}."
    rows = [[name, *(_cell(lines, recipe, name) for recipe in COLUMNS)] for name in NAMES]
    return Table("", ["attention", *COLUMNS.values()], rows, numeric=False).markdown


def _cell(lines: Sequence[Run], recipe: str, name: str) -> str:
    runs = _done(lines, recipe, name)
    if not runs:
        return NOT_RUN if name in BLOCKS["T"][recipe] else "not planned: hours a run"
    minutes = statistics.fmean((run.cpu_seconds or 0.0) / 60 for run in runs)
    memory = [run.peak_memory_mb for run in runs if run.peak_memory_mb is not None]
    said = f"{statistics.fmean(memory):,.0f} MB" if memory else "memory not recorded"
    return f"{seed_scores(lines, accuracy(recipe), name)} %; {minutes:.1f} min; {said}"


def picture(lines: Sequence[Run]) -> Figure | None:
    """Mean accuracy over the tasks that every attention shown was trained on; None before softmax has them all."""
    names = [name for name in NAMES if all(_done(lines, recipe, name) for recipe in ARENA)]
    if "softmax" not in names:
        return None
    found = []
    for name in names:
        runs = [run for recipe in ARENA for run in _done(lines, recipe, name)]
        score = statistics.fmean(seed_scores(lines, accuracy(recipe), name).mean for recipe in ARENA)
        speed = statistics.fmean((run.tokens or 0) / (run.cpu_seconds or float("inf")) for run in runs)
        memory = [run.peak_memory_mb for run in runs if run.peak_memory_mb is not None]
        found.append(TradeOff(name, score, speed, max(memory, default=None)))
    return trade_off(found, name="arena", title="Three arena tasks at their own lengths", speed=SPEED)


def _done(lines: Sequence[Run], recipe: str, name: str) -> list[Run]:
    return [run for run in lines if (run.recipe, run.attention, run.status) == (recipe, name, "done")]
