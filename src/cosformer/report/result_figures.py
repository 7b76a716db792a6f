"""Figures from runs and benchmarks: loss curves, and time and memory against the length."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from cosformer.report.chart import Line, draw_lines, length
from cosformer.report.figure import Figure, styles
from cosformer.report.measurements import Results
from cosformer.runs import Curve, Run

__all__ = [
    "draw_curves",
    "loss_curves",
    "operator_times",
]

_BASELINES = {"sdpa": "softmax", "authors": "authors' code"}  # of the operator -> for people
ZOO = ("cosformer", "softmax", "relu", "linear", "performer", "linformer", "longformer", "bigbird")


# --- loss curves: each seed a thin line behind the mean


def loss_curves(runs: Sequence[Run], attentions: Sequence[str]) -> list[Figure]:
    """Training and validation loss of the runs of one recipe, where any was logged twice. Of an attention the finished runs count;
    while there are none, those that are under way: a mean over both would end early."""
    chosen = {name: [x for x in runs if x.attention == name and x.status == "done"] for name in attentions}
    chosen = {name: done or [x for x in runs if x.attention == name] for name, done in chosen.items()}
    recipe = runs[0].recipe if runs else ""
    found = []
    for kind, field in (("training", "train_loss"), ("validation", "valid_loss")):
        curves = {name: [getattr(run, field) for run in of_name] for name, of_name in chosen.items()}
        if any(len(curve) > 1 for seeds in curves.values() for curve in seeds):  # a single evaluation is no curve
            found.append(draw_curves(curves, name=f"figure4-{kind}", title=f"{kind.capitalize()} loss, {recipe}"))
    return found


def draw_curves(curves: Mapping[str, Sequence[Curve]], *, name: str, title: str) -> Figure:
    """``curves``: for each attention those of its seeds; an attention without any is named as not run."""
    looks = styles(list(curves))
    lines: list[Line] = []
    words: list[str] = []
    for attention, found in curves.items():
        found = [curve for curve in found if curve]
        mean = mean_curve(found) if found else []
        if not mean:
            words.append(f"{attention}: not run.")
            continue
        colour, dashes = looks[attention]
        if len(found) > 1:
            lines += [Line("", curve, colour) for curve in found]
        lines.append(Line(attention, mean, colour, dashes))
        seeds = f"mean of {len(found)} seeds" if len(found) > 1 else "one seed"
        (first, start), (last, end) = mean[0], mean[-1]
        words.append(f"{attention}: from {start:.3f} at step {first:,} to {end:.3f} at step {last:,} ({seeds}).")
    alt = f"{title}, against the step. {' '.join(words)}"
    several = any(len(found) > 1 for found in curves.values())
    caption = title + (": thin lines are seeds, the thick one is their mean." if several else ", one seed each.")
    drawn = draw_lines(lines, title=title, x_label="step", y_label="nats", alt=alt)
    return Figure(name, drawn, "svg", alt, caption)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean at each step that every curve has."""
    values = [dict(curve) for curve in curves]
    shared = set.intersection(*map(set, values))
    return [(step, statistics.fmean(value[step] for value in values)) for step in sorted(shared)]


# --- against the length


def operator_times(results: Results, mode: str) -> Figure:
    """``bench attention``: milliseconds of one forward pass, ``mode`` "causal" or "non-causal"."""
    found = [m for m in results.find(kind="forward", mode=mode) if m.baseline in _BASELINES]
    ours = [(m.attention, m.length, m.milliseconds) for m in found]
    theirs = [(_BASELINES[m.baseline], m.length, m.baseline_milliseconds) for m in found]
    caption = "Both axes are logarithmic: lower is faster, flatter grows slower."
    title = f"{mode.capitalize()} attention, forward"
    return _by_length(f"speed-{mode}", title, "milliseconds", [*ours, *theirs], caption)


def zoo(results: Results, mode: str, kind: str) -> Figure:
    """``bench attention --attentions``: ``kind`` "time" (milliseconds) or "memory" (MB above the inputs) of some."""
    found = results.find(kind=kind, mode=mode)
    values = [(m.attention, m.length, m.milliseconds if kind == "time" else m.value) for m in found]
    values = [value for name in ZOO for value in values if value[0] == name]
    unit = {"time": "milliseconds", "memory": "MB above the inputs"}[kind]
    title = f"{kind.capitalize()} of each attention, {mode.replace('plain', 'bidirectional')}"
    caption = "One forward pass. Both axes are logarithmic: lower is better."
    return _by_length(f"zoo-{mode}-{kind}", title, unit, values, caption, ZOO)


def _by_length(
    name: str,
    title: str,
    unit: str,
    values: Iterable[tuple[str, int | None, float | None]],
    caption: str,
    names: Sequence[str] = (),
    crosses: Mapping[str, Sequence[int]] = MappingProxyType({}),
    crosses_low: bool = False,
) -> Figure:
    """``values``: name, length, value. ``names``: of all that may be seen together, so that each looks the same in every
    picture; () for those of this one."""
    points: dict[str, dict[int, float]] = {}
    for label, n, value in values:
        if n is not None and value:  # nothing measurable (0 MB above the inputs) has no place on a logarithmic axis
            points.setdefault(label, {})[n] = value
    curves = {label: sorted(by_length.items()) for label, by_length in points.items()}
    looks = styles(list(names or curves))
    lines = [Line(label, curve, *looks[label], crosses=crosses.get(label, ())) for label, curve in curves.items()]
    lines += [Line("", (), looks[label][0], crosses=places) for label, places in crosses.items() if label not in curves]
    words = [
        f"{label}: {curve[0][1]:.4g} at {length(curve[0][0])}, {curve[-1][1]:.4g} at {length(curve[-1][0])}."
        for label, curve in curves.items()
    ]
    words += [f"{label}: out of memory at {', '.join(map(length, places))}." for label, places in crosses.items()]
    measured = sorted({n for curve in curves.values() for n, _ in curve})
    ticks = [n for n in measured if not n & (n - 1)] or measured  # powers of two, where there are any
    alt = f"{title}: {unit} against the length. {' '.join(words)}"
    words = {"title": title, "x_label": "tokens", "y_label": unit, "alt": alt}
    return Figure(name, draw_lines(lines, **words, lengths=ticks, crosses_low=crosses_low), "svg", alt, caption)
