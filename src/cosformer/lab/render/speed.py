"""Time and memory against the length, from the JSON that ``cosformer bench`` wrote."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from cosformer.lab.records import Results
from cosformer.lab.render.bench_tables import OUT_OF_MEMORY
from cosformer.lab.render.chart import Line, draw_lines, length
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.palette import styles

_BASELINES = {"sdpa": "softmax", "authors": "authors' code"}  # of the operator -> for people
TEXT = ("cosformer", "softmax", "linear", "performer", "linformer", "local", "longformer", "bigbird")
ZOO = ("cosformer", "softmax", "relu", "linear", "performer", "linformer", "longformer", "bigbird")

Points = dict[str, dict[int, float]]  # name -> length -> value


def operator_times(results: Results, mode: str) -> Figure:
    """``bench attention``: milliseconds of one forward pass, ``mode`` "causal" or "non-causal"."""
    points: Points = {}
    for m in results.find(kind="forward", mode=mode):
        if m.baseline in _BASELINES and m.length is not None:
            for name, value in ((m.attention, m.milliseconds), (_BASELINES[m.baseline], m.baseline_milliseconds)):
                points.setdefault(name, {})[m.length] = value or 0.0
    caption = "Both axes are logarithmic: lower is faster, flatter grows slower."
    return _figure(f"speed-{mode}", f"{mode.capitalize()} attention, forward", "milliseconds", points, caption)


def zoo(results: Results, mode: str, kind: str, names: Sequence[str] = ZOO) -> Figure:
    """``bench attention --attentions``: ``kind`` "time" (milliseconds) or "memory" (MB above the inputs) of ``names``."""
    points: Points = {}
    for m in results.find(kind=kind, mode=mode):
        value = m.milliseconds if kind == "time" else m.value
        if m.attention in names and m.length is not None and value is not None:
            points.setdefault(m.attention, {})[m.length] = value
    points = {name: points[name] for name in names if name in points}
    unit = {"time": "milliseconds", "memory": "MB above the inputs"}[kind]
    title = f"{kind.capitalize()} of each attention, {mode.replace('plain', 'bidirectional')}"
    caption = "One forward pass. Both axes are logarithmic: lower is better."
    return _figure(f"zoo-{mode}-{kind}", title, unit, points, caption, names)


def text(results: Results, mode: str, kind: str, names: Sequence[str] = TEXT) -> Figure:
    """``bench text``: ``mode`` "inference" or "training", ``kind`` "speed" (steps per second) or "memory" (MB above the
    model); a cross where memory ran out."""
    points: Points = {}
    for m in results.find(kind=kind, mode=mode):
        value = m.value if kind == "memory" else m.milliseconds
        if m.attention in names and m.length is not None and value:
            points.setdefault(m.attention, {})[m.length] = value if kind == "memory" else 1e3 / value
    crosses: dict[str, list[int]] = {}
    for m in results.find(kind="memory", mode=mode, value=None):
        # what does not fit is not timed either, so the memory speaks for both
        if m.attention in names and m.length is not None and m.note.startswith(OUT_OF_MEMORY):
            crosses.setdefault(m.attention, []).append(m.length)
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
