"""What the fields of a run's records must be: one that is something else is named, and the rest is read."""

import math
from pathlib import Path
from typing import Any

_KINDS: dict[str, Any] = {
    **dict.fromkeys(("steps", "steps_done", "tokens", "parameters", "pid", "processes", "seed"), int),
    **dict.fromkeys(("seconds", "cpu_seconds"), int | float),
    **dict.fromkeys(("status", "reason", "started", "host", "date", "commit", "command", "score", "score_name"), str),
    **dict.fromkeys(("best", "machine", "scores", "baseline", "learned"), dict),
    "higher_is_better": bool,
}
_WORDS = {int: "a whole number", int | float: "a number", str: "text", dict: "an object", bool: "true or false"}


def readable(path: Path, record: dict[str, Any] | None, problems: list[str]) -> dict[str, Any]:
    """The fields of ``record``, from ``path``, that are what they must be; of the others a line among the ``problems``."""
    kept = {}
    for name, value in (record or {}).items():
        kind = _KINDS.get(name)
        if kind is None or value is None or _is(value, kind):
            kept[name] = value
        else:
            problems.append(f"{path}: {name} is {str(value)[:40]}, not {_WORDS[kind]}; it is left out")
    for name, inside in (("best", int | float), ("baseline", dict), ("learned", bool)):
        if wrong := [key for key, value in (kept.get(name) or {}).items() if not _is(value, inside)]:
            problems.append(f"{path}: {name} has no {wrong[0]} that is {_WORDS[inside]}; it is left out")
            del kept[name]
    return kept


def _is(value: Any, kind: Any) -> bool:
    """JSON's true and false are no numbers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def finite_scores(found: Any) -> dict[str, dict[str, float]]:
    """Finite numbers only: one that is none has no mean."""
    scores = found if isinstance(found, dict) else {}
    return {
        name: {metric: float(x) for metric, x in values.items() if finite(x) is not None}
        for name, values in scores.items()
        if isinstance(values, dict)
    }


def finite(value: Any) -> float | None:
    """A finite number as it stands, otherwise None: a loss that is not a number has no place on a curve."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
