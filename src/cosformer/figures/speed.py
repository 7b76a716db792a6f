"""Time and memory against the length, from the JSON that ``cosformer bench`` wrote."""

from collections.abc import Sequence
from typing import Any

from cosformer.bench.results import rows_of
from cosformer.figures.chart import Chart, Line, draw, length
from cosformer.figures.figure import Figure
from cosformer.figures.palette import styles

_NAMES = {"sdpa": "softmax", "released": "released"}  # as the operator's benchmark calls them -> for people
ZOO = ("cosformer", "softmax", "relu", "linear", "performer", "linformer", "longformer", "bigbird")

Points = dict[str, dict[int, float]]  # name -> length -> value


def operator_times(results: dict[str, Any], mode: str) -> Figure:
    """``bench attention``: milliseconds of one forward pass, ``mode`` "causal" or "non-causal"."""
    points: Points = {}
    for row in rows_of(results):
        kind, *place = row.id.split("/")
        if kind != "forward" or place[0] != mode or place[2] not in _NAMES:
            continue
        for name, value in row.milliseconds.items():
            points.setdefault(_NAMES.get(name, name), {})[int(place[1])] = value
    title = f"{mode.capitalize()} attention, forward"
    return _figure(
        f"speed-{mode}",
        title,
        "milliseconds",
        points,
        "Both axes are logarithmic: lower is faster, flatter grows slower.",
    )


def zoo(results: dict[str, Any], mode: str, kind: str, names: Sequence[str] = ZOO) -> Figure:
    """``bench attention --attentions``: ``kind`` "time" (milliseconds) or "memory" (MB above the inputs) of ``names``."""
    rows = {tuple(row.id.split("/")[1:]): row for row in rows_of(results) if row.id.startswith("zoo/")}
    points: Points = {}
    for name in names:
        row = rows.get((name, mode, kind))
        if row is not None and row.by_length:
            points[name] = {int(n): value for n, value in row.by_length.items()}
    unit = {"time": "milliseconds", "memory": "MB above the inputs"}[kind]
    title = f"{kind.capitalize()} of each attention, {mode.replace('plain', 'bidirectional')}"
    return _figure(
        f"zoo-{mode}-{kind}",
        title,
        unit,
        points,
        "One forward pass. Both axes are logarithmic: lower is better.",
        names,
    )


def _figure(name: str, title: str, unit: str, points: Points, caption: str, names: Sequence[str] = ()) -> Figure:
    """``names``: of all that may be seen together, so that each looks the same in every picture; () for those of this one."""
    looks = styles(list(names or points))
    # nothing measurable (0 MB above the inputs) has no place on a logarithmic axis
    curves = {label: sorted((n, x) for n, x in values.items() if x > 0) for label, values in points.items()}
    curves = {label: values for label, values in curves.items() if values}
    lines = [Line(label, values, *looks[label]) for label, values in curves.items()]
    words = [
        f"{label}: {values[0][1]:g} at {length(values[0][0])}, {values[-1][1]:g} at {length(values[-1][0])}."
        for label, values in curves.items()
    ]
    measured = sorted({n for values in points.values() for n in values})
    ticks = [n for n in measured if not n & (n - 1)] or measured  # powers of two, where there are any
    alt = f"{title}: {unit} against the length. {' '.join(words)}"
    chart = Chart(title, "tokens", unit, lines=lines, log_x=True, log_y=True, ticks=ticks)
    return Figure(name, draw(chart, alt).encode(), "svg", alt, caption)
