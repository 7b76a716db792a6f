"""Tables of measurements: what the benchmarks share."""

import math
from collections.abc import Callable, Iterable, Sequence

from cosformer.report.measurements import DIFFERENCE, Measurement, Results, cell
from cosformer.report.table import Table

__all__ = [
    "NO_SUCH_FORM",
    "OUT_OF_MEMORY",
    "SPREAD",
    "crossed",
    "growth",
    "length",
    "lengths_of",
    "listed",
    "rest",
]

NO_SUCH_FORM = "-"  # in a note: the attention has no such mode
OUT_OF_MEMORY = "out of memory"  # so begins the note of a step that does not fit
SPREAD = "median of pairs and quartiles"
Name = Callable[[Measurement], str]


def crossed(
    title: str, shown: Iterable[Measurement], row: Name, column: Name, corner: str = "", missing: str = ""
) -> Table:
    """``row`` and ``column`` name a measurement's place; both stand in the order in which they come first."""
    grid = {(row(m), column(m)): cell(m) for m in shown}
    rows, columns = (list(dict.fromkeys(key[i] for key in grid)) for i in (0, 1))
    return Table(title, [corner, *columns], [[x, *(grid.get((x, y), missing) for y in columns)] for x in rows])


def listed(title: str, measurements: Iterable[Measurement]) -> Table:
    rows = [
        [m.what, f"{cell(m)} {'' if m.unit == DIFFERENCE or m.value is None else m.unit}".strip()] for m in measurements
    ]
    return Table(title, ["", "measured"], rows)


def rest(results: Results, shown: Sequence[Measurement]) -> Table:
    """What the other tables do not show."""
    return listed(f"Also measured ({SPREAD}).", [m for m in results.measurements if m not in shown])


def growth(lengths: Sequence[int], values: Sequence[float]) -> str:
    """Factor between the two longest lengths, and its exponent in the length."""
    if len(values) < 2 or min(values[-2:]) <= 0:
        return ""
    factor = values[-1] / values[-2]
    return f"{factor:.2f}x (N^{math.log(factor) / math.log(lengths[-1] / lengths[-2]):.2f})"


def lengths_of(measurements: Iterable[Measurement]) -> list[int]:
    return sorted({m.length for m in measurements if m.length is not None})


def length(m: Measurement) -> str:
    return f"{m.length:,}"
