"""Time and memory against the length, from the JSON that ``cosformer bench`` wrote."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cosformer.lab.bench.results import rows_of
from cosformer.lab.render.chart import Line, draw_lines, length
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.palette import styles

_NAMES = {"sdpa": "softmax", "released": "released"}  # as the operator's benchmark calls them -> for people
TEXT = ("cosformer", "softmax", "linear", "performer", "linformer", "local", "longformer", "bigbird")
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


def text(results: dict[str, Any], mode: str, kind: str, names: Sequence[str] = TEXT) -> Figure:
    """``bench text``: ``mode`` "inference" or "training", ``kind`` "speed" (steps per second) or "memory" (MB above the
    model); a cross where memory ran out."""
    points: Points = {}
    crosses: dict[str, list[int]] = {}
    for row in rows_of(results):
        if not row.id.startswith(f"text/memory/{mode}/" if kind == "memory" else f"text/{mode}/"):
            continue
        n, name = int(row.id.split("/")[-2]), row.id.split("/")[-1]
        value = row.value if kind == "memory" else row.milliseconds.get(name)
        if name in names and value:
            points.setdefault(name, {})[n] = value if kind == "memory" else 1e3 / value
    for row in rows_of(results):
        # what does not fit is not timed either, so the memory's rows speak for both
        if row.id.startswith(f"text/memory/{mode}/") and row.value is None and row.note.startswith("out of memory"):
            name = row.id.split("/")[-1]
            if name in names:
                crosses.setdefault(name, []).append(int(row.id.split("/")[-2]))
    unit = {"speed": "steps per second", "memory": "MB above the model"}[kind]
    title = f"Text classification, {mode}: {kind}"
    better = "higher is faster" if kind == "speed" else "lower is better"
    caption = f"Both axes are logarithmic: {better}." + (" ×: out of memory." if crosses else "")
    return _figure(f"text-{mode}-{kind}", title, unit, points, caption, names, crosses, crosses_low=kind == "speed")


def _figure(
    name: str,
    title: str,
    unit: str,
    points: Points,
    caption: str,
    names: Sequence[str] = (),
    crosses: Mapping[str, Sequence[int]] = MappingProxyType({}),
    crosses_low: bool = False,
) -> Figure:
    """``names``: of all that may be seen together, so that each looks the same in every picture; () for those of this one."""
    looks = styles(list(names or points))
    # nothing measurable (0 MB above the inputs) has no place on a logarithmic axis
    curves = {label: sorted((n, x) for n, x in values.items() if x > 0) for label, values in points.items()}
    curves = {label: values for label, values in curves.items() if values}
    lines = [Line(label, values, *looks[label], crosses=crosses.get(label, ())) for label, values in curves.items()]
    lines += [Line("", (), looks[label][0], crosses=places) for label, places in crosses.items() if label not in curves]
    words = [
        f"{label}: {values[0][1]:.4g} at {length(values[0][0])}, {values[-1][1]:.4g} at {length(values[-1][0])}."
        for label, values in curves.items()
    ]
    words += [f"{label}: out of memory at {', '.join(map(length, places))}." for label, places in crosses.items()]
    measured = sorted({n for values in points.values() for n in values})
    ticks = [n for n in measured if not n & (n - 1)] or measured  # powers of two, where there are any
    alt = f"{title}: {unit} against the length. {' '.join(words)}"
    words = {"title": title, "x_label": "tokens", "y_label": unit, "alt": alt}
    return Figure(name, draw_lines(lines, **words, lengths=ticks, crosses_low=crosses_low), "svg", alt, caption)
