"""Results of a benchmark: rows of a JSON document that is written, read and compared with an older one."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cosformer.lab.bench.measure import Spread

FORMAT = 1
DIFFERENCE = "µs more"


@dataclass(frozen=True)
class Row:
    """One measurement. ``value`` None: not run, and ``note`` says why."""

    id: str  # the same in every run, e.g. "forward/causal/4096/sdpa"
    what: str  # for people
    unit: str
    better: Literal["higher", "lower"]
    value: float | None = None
    low: float | None = None  # quartiles of the repeats
    high: float | None = None
    goal: float | None = None
    milliseconds: dict[str, float] = field(default_factory=dict)  # what the value was made from
    by_length: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal or a value."""
        if self.goal is None or self.value is None:
            return None
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal

    @property
    def comparable(self) -> float | None:
        """A positive number to hold against an older run: the value, or the ratio behind a difference of two times."""
        if self.value is None or self.unit != DIFFERENCE:
            return self.value
        ours, theirs = self.milliseconds.values()
        return ours / theirs


def measured(row: Row, result: Spread) -> Row:
    """``row`` with its numbers, rounded to what a benchmark can tell."""
    value, low, high = (float(f"{x:.4g}") for x in result)
    return replace(row, value=value, low=low, high=high)


def document(
    rows: Iterable[Row], machine: dict[str, Any], provenance: dict[str, Any], settings: dict[str, Any]
) -> dict:
    """What goes into the JSON file; fields of a row that say nothing are left out."""
    empty: tuple[Any, ...] = (None, "", {})
    lean = [{key: value for key, value in asdict(row).items() if value not in empty} for row in rows]
    return {"format": FORMAT, **provenance, "machine": machine, "settings": settings, "rows": lean}


def rows_of(results: dict[str, Any]) -> list[Row]:
    return [Row(**row) for row in results["rows"]]


def read(path: Path) -> dict[str, Any]:
    """A document that a benchmark wrote."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); give a file that --json wrote") from None
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ValueError(f"{path} is not a benchmark result in format {FORMAT}; give a file that --json wrote")
    return results


@dataclass(frozen=True)
class Change:
    """How one row moved; ``worse`` above 1: it got worse by this factor."""

    row: Row
    old: float
    new: float

    @property
    def worse(self) -> float:
        return self.old / self.new if self.row.better == "higher" else self.new / self.old


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Rows that both have measured."""
    before = {row.id: row for row in rows_of(old)}
    changes = []
    for row in rows_of(new):
        previous = before.get(row.id)
        if previous is not None and previous.comparable is not None and row.comparable is not None:
            changes.append(Change(row, previous.comparable, row.comparable))
    return changes
