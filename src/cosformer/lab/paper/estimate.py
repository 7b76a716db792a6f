"""How long the missing runs will take, said before they start."""

from collections.abc import Sequence

from cosformer.lab.paper.cells import Cell
from cosformer.lab.paper.rates import QUARTER
from cosformer.lab.records import Run

# minutes of one core, where nothing has been measured yet
GUESS = 20.0


def estimate(cells: Sequence[Cell], lines: Sequence[Run], jobs: int) -> str:
    """A sentence with the hours of ``cells``, from the processor time of the runs in ``lines``."""
    seconds, guessed = 0.0, 0
    for cell in cells:
        found = _seconds(cell, lines)
        seconds += 60 * GUESS if found is None else found
        guessed += found is None
    if not cells:
        return "Nothing is missing."
    hours = seconds / 3600
    unknown = (
        f"; {guessed} of them are counted with {GUESS:g} minutes, as nothing like them has run yet" if guessed else ""
    )
    return f"{len(cells)} runs are missing: about {hours:.1f} hours of one core, {hours / jobs:.1f} with {jobs} at a time{unknown}."


def minutes(cell: Cell, lines: Sequence[Run]) -> str:
    """``about 12 min``, from the runs in ``lines``; of what has never run, that it is not known."""
    found = _seconds(cell, lines)
    return "time not known" if found is None else f"about {max(1, round(found / 60))} min"


def _seconds(cell: Cell, lines: Sequence[Run]) -> float | None:
    """From runs of the same recipe, with the same attention if there are any; a search is a quarter as long."""
    same = [line for line in lines if line.recipe == cell.recipe]
    closest = [line for line in same if line.attention == cell.attention] or same
    if not closest:
        return None
    full = [(line.cpu_seconds or 0.0) * (QUARTER if line.extra.get("rate") else 1) for line in closest]
    return sum(full) / len(full) / (QUARTER if cell.rate else 1)
