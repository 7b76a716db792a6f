"""Figures from runs and from what ``cosformer bench`` measured: loss curves (the paper's figure 4), score against speed and memory
(its figure 1), time and memory against the length, and the effects behind the verdicts."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cosformer.report import paper_numbers as paper
from cosformer.report.bench_tables import OUT_OF_MEMORY
from cosformer.report.chart import Bubble, Line, draw_bubbles, draw_lines, length
from cosformer.report.figure import INK, RULE, Figure, canvas, styles, svg
from cosformer.report.paper_tables import average, scores
from cosformer.report.records import Curve, Results, Run

_BASELINES = {"sdpa": "softmax", "authors": "authors' code"}  # of the operator -> for people
TEXT = ("cosformer", "softmax", "linear", "performer", "linformer", "local", "longformer", "bigbird")
ZOO = ("cosformer", "softmax", "relu", "linear", "performer", "linformer", "longformer", "bigbird")

LENGTH = 2000  # the longest where every model of the paper runs
_SCORE, _SPEED = "accuracy, mean of the tasks (%)", f"training steps per second at {LENGTH:,}"
_WIDTH, _ROW, _TOP, _BOTTOM, _LEFT, _RIGHT = 770, 30, 44, 52, 330, 180  # of the effects, in pixels
_OUTCOMES = {"holds here": "#009e73", "does not hold here": "#d55e00", "undecided": "#1a7fc1"}
_REACH = 100.0  # margins to either side; what goes beyond is drawn to the edge and told in numbers
_TICKS = (-100, -10, -1, 0, 1, 10, 100)


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


# --- score, speed and memory


@dataclass(frozen=True)
class TradeOff:
    """One attention: its score, its speed (steps per second) and its peak memory in MB, None where it was not measured."""

    attention: str
    score: float
    speed: float
    memory: float | None


def trade_off(found: Sequence[TradeOff], *, name: str, title: str) -> Figure:
    """Up and to the right is better, small circles are."""
    looks = styles([item.attention for item in found])
    bubbles = [Bubble(x.attention, x.speed, x.score, x.memory, looks[x.attention][0]) for x in found]
    words = [
        f"{x.attention}: {_SCORE} {x.score:.4g}, {x.speed:.4g} {_SPEED}, "
        + ("memory not measured." if x.memory is None else f"{x.memory:,.0f} MB.")
        for x in found
    ]
    alt = f"{title}. {' '.join(words)}"
    measured = any(x.memory is not None for x in found)
    area = ", the circle's area is the peak memory." if measured else "; the memory is not known."
    drawn = draw_bubbles(bubbles, title=title, x_label=_SPEED, y_label=_SCORE, alt=alt)
    return Figure(name, drawn, "svg", alt, f"{title}: up is better, right is faster{area}")


def our_trade_offs(runs: Sequence[Run], results: Results) -> list[TradeOff]:
    """The average accuracy over the Long-Range Arena recipes that every attention shown was trained on, against training
    steps per second and peak memory in ``results`` of ``bench text``, at 2,000 bytes or the longest measured."""
    timed = {(m.attention, m.length): m.milliseconds for m in results.find(kind="speed", mode="training")}
    lengths = [n for _, n in timed if n is not None]
    at = LENGTH if LENGTH in lengths else max(lengths, default=0)
    runs = [run for run in runs if run.recipe.startswith("lra-") and timed.get((run.attention, at))]
    column = average("", list(dict.fromkeys(run.recipe for run in runs)), runs)
    found = []
    for name in dict.fromkeys(run.attention for run in runs):
        score = scores(runs, column, name)
        memory = results.one(kind="memory", mode="training", attention=name, length=at)
        if score.values:
            speed = 1e3 / (timed[name, at] or math.inf)
            found.append(TradeOff(name, score.mean, speed, None if memory is None else memory.value))
    return found


def our_trade_off(runs: Sequence[Run], results: Results) -> Figure | None:
    """Figure 1, ours; None where no attention has both scores and speeds."""
    found = our_trade_offs(runs, results)
    title = "Figure 1, ours: mean of our Long-Range Arena tasks"
    return trade_off(found, name="figure1", title=title) if found else None


def paper_trade_offs() -> list[TradeOff]:
    """From the paper's tables 4 and 5. Its figure prints no numbers: which speed it draws is not said, and the memory is
    tabulated nowhere."""
    speeds = {name: row[LENGTH] for name, row in paper.TABLE5["training"].items()}
    return [TradeOff(name, row["average"], speeds[name] or 0.0, None) for name, row in paper.TABLE4.items()]


def paper_trade_off() -> Figure:
    return trade_off(paper_trade_offs(), name="figure1-paper", title="Figure 1 from the paper's tables 4 and 5")


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


def text(results: Results, mode: str, kind: str) -> Figure:
    """``bench text``: ``mode`` "inference" or "training", ``kind`` "speed" (steps per second) or "memory" (MB above the
    model); a cross where memory ran out."""
    found = [m for m in results.find(kind=kind, mode=mode) if m.attention in TEXT]
    if kind == "speed":
        values = [(m.attention, m.length, 1e3 / m.milliseconds) for m in found if m.milliseconds]
    else:
        values = [(m.attention, m.length, m.value) for m in found]
    crosses: dict[str, list[int]] = {}
    for m in results.find(kind="memory", mode=mode, value=None):
        # what does not fit is not timed either, so the memory speaks for both
        if m.attention in TEXT and m.length is not None and m.note.startswith(OUT_OF_MEMORY):
            crosses.setdefault(m.attention, []).append(m.length)
    unit = {"speed": "steps per second", "memory": "MB above the model"}[kind]
    title = f"Text classification, {mode}: {kind}"
    better = "higher is faster" if kind == "speed" else "lower is better"
    caption = f"Both axes are logarithmic: {better}." + (" ×: out of memory." if crosses else "")
    return _by_length(f"text-{mode}-{kind}", title, unit, values, caption, TEXT, crosses, crosses_low=kind == "speed")


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


# --- the verdicts: by how much the first attention of a comparison is better than the second, with its interval


def effects(claims: Sequence[dict[str, Any]], margins: dict[str, float]) -> Figure:
    """One row a comparison. Effects are divided by the margin of their unit (``margins``, by recipe), so that all share an axis;
    a comparison without runs has no interval, and one that is not judged is grey."""
    rows = [(claim, part) for claim in claims for part in claim["parts"]]
    height = _TOP + _BOTTOM + _ROW * len(rows)
    words = [_effect_words(claim, part) for claim, part in rows]
    title = "Effects, in margins: right of 0 is better"
    with canvas(_WIDTH, height) as drawn:
        axes = drawn.add_axes(
            (_LEFT / _WIDTH, _BOTTOM / height, 1 - (_LEFT + _RIGHT) / _WIDTH, 1 - (_TOP + _BOTTOM) / height)
        )
        # effects of a tenth of a margin and of fifty margins stand side by side
        axes.set_xscale("symlog", linthresh=1)
        axes.set(xlim=(-_REACH, _REACH), ylim=(len(rows) - 0.5, -0.5), yticks=[])
        axes.set_xticks(_TICKS, [str(tick) for tick in _TICKS])
        axes.minorticks_off()
        axes.set_xlabel("difference / margin, mean and 95 % interval; logarithmic beyond one margin")
        axes.axvline(0, color=INK, linewidth=1)
        axes.axvline(-1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.text(-1, -0.62, "margin", ha="right", va="bottom", color=INK)
        for place, (claim, part) in enumerate(rows):
            colour = _OUTCOMES.get(part["outcome"], RULE)
            label = f"{_side(part, 'first')} {'≥' if part['kind'] == 'on_par' else '>'} {_side(part, 'second')}, {claim['key']}"
            axes.text(-0.02, place, label, transform=axes.get_yaxis_transform(), ha="right", va="center", color=INK)
            axes.text(1.02, place, part["outcome"], transform=axes.get_yaxis_transform(), va="center", color=colour)
            if "mean" in part:
                low, mean, high = (_clip(part[key] / margins[part["first_recipe"]]) for key in ("low", "mean", "high"))
                axes.plot([low, high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
                axes.plot([mean], [place], "o", color=colour, markersize=6)
        drawn.text(0.01, 1 - 20 / height, title, weight="bold", color=INK)
        alt = f"{title}. {' '.join(words)}"
        picture = svg(drawn, alt)
    return Figure("effects", picture, "svg", alt, "Each comparison's mean effect and interval, divided by its margin.")


def _side(part: dict[str, Any], side: str) -> str:
    recipe = part[f"{side}_recipe"].removeprefix("evidence-")
    return part[side] if part["first_recipe"] == part["second_recipe"] else f"{part[side]} ({recipe})"


def _clip(value: float) -> float:
    return max(-_REACH, min(_REACH, value))


def _effect_words(claim: dict[str, Any], part: dict[str, Any]) -> str:
    what = f"{claim['key']}: {part['first']} against {part['second']}"
    if "mean" not in part:
        return f"{what}, {part['outcome']}."
    return (
        f"{what}, {part['mean']:+.3g} {claim['unit']} ({part['low']:+.2g} to {part['high']:+.2g}), {part['outcome']}."
    )
