"""Line charts of runs and benchmarks: loss curves, and time and memory against the length."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cosformer.report.figure import Figure, canvas, styles, svg
from cosformer.report.measurements import Results
from cosformer.runs import Curve, Run

__all__ = ["Line", "by_length", "draw_curves", "draw_lines", "loss_curves"]

WIDTH, HEIGHT = 460, 300


@dataclass(frozen=True)
class Line:
    """``label`` stands in the legend; a line without one is thin, as one of the seeds around their mean."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashes: tuple[int, ...] = ()


def draw_lines(
    lines: Sequence[Line], *, title: str, x_label: str, y_label: str, alt: str, lengths: Sequence[int] = ()
) -> bytes:
    """The SVG. ``lengths``: both axes are logarithmic, and these are labelled below."""
    lines = [line for line in lines if line.points]
    if not lines:
        raise ValueError(f"nothing to draw in {title!r}: no line has a point")
    with canvas(WIDTH, HEIGHT) as drawn:
        axes = drawn.subplots()
        for line in lines:
            few = len(line.points) <= 12
            look = {"marker": "o" if few else "", "markersize": 5} if line.label else {"linewidth": 1, "alpha": 0.38}
            linestyle = (0, line.dashes) if line.dashes and line.label else "-"
            axes.plot(
                *zip(*line.points, strict=True),
                color=line.colour,
                linestyle=linestyle,
                label=line.label or None,
                **look,
            )
        axes.set_title(title, loc="left", weight="bold")
        axes.set(xlabel=x_label, ylabel=y_label)
        if lengths:
            axes.set(xscale="log", yscale="log")
            axes.set_xticks(lengths, [_length(n) for n in lengths])
            axes.minorticks_off()
        axes.legend(loc="best", frameon=False, ncols=1 if len(lines) < 6 else 2, fontsize=11, labelcolor="linecolor")
        drawn.set_layout_engine("tight", pad=0.4)
        return svg(drawn, alt)


def loss_curves(runs: Sequence[Run], attentions: Sequence[str]) -> list[Figure]:
    """Training and validation loss of the runs of one recipe, where any was logged twice. Of an attention the finished
    runs count; while there are none, those that are under way: a mean over both would end early."""
    chosen = {name: [x for x in runs if x.attention == name and x.status == "done"] for name in attentions}
    chosen = {name: done or [x for x in runs if x.attention == name] for name, done in chosen.items()}
    found = []
    for kind, field in (("training", "train_loss"), ("validation", "valid_loss")):
        curves = {name: [getattr(run, field) for run in of_name] for name, of_name in chosen.items()}
        if any(len(curve) > 1 for seeds in curves.values() for curve in seeds):  # a single evaluation is no curve
            title = f"{kind.capitalize()} loss, {runs[0].recipe}"
            found.append(draw_curves(curves, name=f"loss-{kind}", title=title))
    return found


def draw_curves(curves: Mapping[str, Sequence[Curve]], *, name: str, title: str) -> Figure:
    """``curves``: for each attention those of its seeds; an attention without any is named as not run."""
    looks = styles(list(curves))
    lines: list[Line] = []
    words: list[str] = []
    several = False
    for attention, of_name in curves.items():
        seeds = [curve for curve in of_name if curve]
        mean = mean_curve(seeds) if seeds else []
        if not mean:
            words.append(f"{attention}: not run.")
            continue
        colour, dashes = looks[attention]
        if len(seeds) > 1:
            several = True
            lines += [Line("", curve, colour) for curve in seeds]
        lines.append(Line(attention, mean, colour, dashes))
        (first, start), (last, end) = mean[0], mean[-1]
        whose = f"mean of {len(seeds)} seeds" if len(seeds) > 1 else "one seed"
        words.append(f"{attention}: from {start:.3f} at step {first:,} to {end:.3f} at step {last:,} ({whose}).")
    alt = f"{title}, against the step. {' '.join(words)}"
    drawn = draw_lines(lines, title=title, x_label="step", y_label="nats", alt=alt)
    caption = f"{title}: thin lines are seeds, the thick one is their mean." if several else f"{title}, one seed each."
    return Figure(name, drawn, "svg", alt, caption)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean at each step that every curve has."""
    values = [dict(curve) for curve in curves]
    shared = set.intersection(*map(set, values))
    return [(step, statistics.fmean(value[step] for value in values)) for step in sorted(shared)]


def benchmark_charts(results: Results) -> list[Figure]:
    """Of ``bench attention`` milliseconds against the length, by mode; with ``--attentions`` the memory, too."""
    found = []
    for mode in dict.fromkeys(m.mode for m in results.measurements):
        forward = [m for m in results.find(kind="forward", mode=mode) if m.baseline in ("sdpa", "authors")]
        times = [(m.attention, m.length, m.milliseconds) for m in [*forward, *results.find(kind="time", mode=mode)]]
        times += [
            ({"sdpa": "softmax", "authors": "authors' code"}[m.baseline], m.length, m.baseline_milliseconds)
            for m in forward
        ]
        sizes = [(m.attention, m.length, m.value) for m in results.find(kind="memory", mode=mode) if m.unit == "MB"]
        for what, unit, values in (("time", "milliseconds", times), ("memory", "MB above the inputs", sizes)):
            if len({n for _, n, value in values if value}) > 1:
                title = f"{mode.replace('plain', 'bidirectional').capitalize()} attention, forward {what}"
                found.append(by_length(f"{mode}-{what}".replace(" ", "-"), title, unit, values))
    return found


def by_length(name: str, title: str, unit: str, values: Iterable[tuple[str, int | None, float | None]]) -> Figure:
    """``values``: name, length, value."""
    points: dict[str, dict[int, float]] = {}
    for label, n, value in values:
        if n is not None and value:  # nothing measurable (0 MB above the inputs) has no place on a logarithmic axis
            points.setdefault(label, {})[n] = value
    curves = {label: sorted(of_label.items()) for label, of_label in points.items()}
    looks = styles(list(curves))
    words = [
        f"{label}: {curve[0][1]:.4g} at {_length(curve[0][0])}, {curve[-1][1]:.4g} at {_length(curve[-1][0])}."
        for label, curve in curves.items()
    ]
    measured = sorted({n for curve in curves.values() for n, _ in curve})
    round_ones = [n for n in measured if not n & (n - 1)] or measured
    ticks = round_ones[:: -(1 + len(round_ones) // 6)]  # the longest first
    alt = f"{title}: {unit} against the length. {' '.join(words)}"
    lines = [Line(label, curve, *looks[label]) for label, curve in curves.items()]
    drawn = draw_lines(lines, title=title, x_label="tokens", y_label=unit, alt=alt, lengths=sorted(ticks))
    return Figure(name, drawn, "svg", alt, "Both axes are logarithmic: lower is better, flatter grows slower.")


def _length(n: int) -> str:
    """16384 is 16K."""
    return f"{n // 1024}K" if n >= 1024 and n % 1024 == 0 else f"{n:,}"
