"""Figure 1, score against speed and memory, and the picture of the effects behind the verdicts."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosformer.report.figure import INK, RULE, Figure, canvas, styles, svg
from cosformer.report.measurements import Results
from cosformer.runs import Run
from studies.cosformer2022 import paper
from studies.cosformer2022.paper_tables import average, scores

LENGTH = 2000  # the longest where every model of the paper runs
_SCORE, _SPEED = "accuracy, mean of the tasks (%)", f"training steps per second at {LENGTH:,}"
_WIDTH, _ROW, _TOP, _BOTTOM, _LEFT, _RIGHT = 770, 30, 44, 52, 330, 180  # of the effects, in pixels
_OUTCOMES = {"holds here": "#009e73", "does not hold here": "#d55e00", "undecided": "#1a7fc1"}
_REACH = 100.0  # margins to either side; what goes beyond is drawn to the edge and told in numbers
_TICKS = (-100, -10, -1, 0, 1, 10, 100)


@dataclass(frozen=True)
class TradeOff:
    """One attention: its score, speed (steps per second) and peak memory in MB; None if not measured."""

    attention: str
    score: float
    speed: float
    memory: float | None


def trade_off(found: Sequence[TradeOff], *, name: str, title: str, speed: str = _SPEED) -> Figure:
    """Up and to the right is better, small circles are. ``speed``: what is on the axis below."""
    looks = styles([item.attention for item in found])
    alt = f"{title}: mean accuracy against {speed}, for {', '.join(x.attention for x in found)}."
    measured = any(x.memory is not None for x in found)
    area = ", the circle's area is the peak memory." if measured else "; the memory is not known."
    largest = max((x.memory for x in found if x.memory), default=1.0)
    with canvas(520, 340) as canvas_:
        axes = canvas_.subplots()
        for x in sorted(found, key=lambda x: -(x.memory or 0)):  # small ones on top
            size = 60 if x.memory is None else max(20, 900 * x.memory / largest)
            face = "none" if x.memory is None else f"{looks[x.attention][0]}59"
            axes.scatter(x.speed, x.score, s=size, facecolor=face, edgecolor=looks[x.attention][0], linewidth=1.5)
            axes.annotate(
                x.attention, (x.speed, x.score), xytext=(7, 4), textcoords="offset points", color=looks[x.attention][0]
            )
        axes.set_xscale("log")
        axes.margins(0.16)
        axes.set_title(title, loc="left", weight="bold")
        axes.set(xlabel=speed, ylabel=_SCORE)
        canvas_.set_layout_engine("tight", pad=0.4)
        drawn = svg(canvas_, alt)
    return Figure(name, drawn, "svg", alt, f"{title}: up is better, right is faster{area}")


def our_trade_offs(runs: Sequence[Run], results: Results) -> list[TradeOff]:
    """The average accuracy over the Long-Range Arena recipes that every attention shown was trained on, against
    training steps per second and peak memory in ``results`` of ``bench text``, at 2,000 bytes or the longest measured.
    """
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
    """From the paper's tables 4 and 5. Its figure prints no numbers: which speed it draws is not said, and the memory
    is tabulated nowhere."""
    speeds = {name: row[LENGTH] for name, row in paper.TABLE5["training"].items()}
    return [TradeOff(name, row["average"], speeds[name] or 0.0, None) for name, row in paper.TABLE4.items()]


def paper_trade_off() -> Figure:
    return trade_off(paper_trade_offs(), name="figure1-paper", title="Figure 1 from the paper's tables 4 and 5")


def effects(claims: Sequence[dict[str, Any]], margins: dict[str, float]) -> Figure:
    """One row a comparison that has runs. Effects are divided by the margin of their unit (``margins``, by recipe), so
    that all share an axis; a comparison that is not judged is grey."""
    rows = [(claim, part) for claim in claims for part in claim["parts"] if "mean" in part]
    height = _TOP + _BOTTOM + _ROW * len(rows)
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
            label = (
                f"{_side(part, 'first')} {'≥' if part['kind'] == 'on_par' else '>'} {_side(part, 'second')}, "
                f"{claim['key']}"
            )
            axes.text(-0.02, place, label, transform=axes.get_yaxis_transform(), ha="right", va="center", color=INK)
            axes.text(1.02, place, part["outcome"], transform=axes.get_yaxis_transform(), va="center", color=colour)
            low, mean, high = (_clip(part[key] / margins[part["first_recipe"]]) for key in ("low", "mean", "high"))
            axes.plot([low, high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
            axes.plot([mean], [place], "o", color=colour, markersize=6)
        drawn.text(0.01, 1 - 20 / height, title, weight="bold", color=INK)
        alt = f"Mean difference and 95 % interval of {len(rows)} comparisons of attentions: {_counted(rows)}."
        picture = svg(drawn, alt)
    return Figure("effects", picture, "svg", alt, "Each comparison's mean effect and interval, divided by its margin.")


def _side(part: dict[str, Any], side: str) -> str:
    recipe = part[f"{side}_recipe"].removeprefix("evidence-")
    return part[side] if part["first_recipe"] == part["second_recipe"] else f"{part[side]} ({recipe})"


def _clip(value: float) -> float:
    return max(-_REACH, min(_REACH, value))


def _counted(rows: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """``3 holds here, 8 does not hold here`` in words that fit one and several."""
    counts = Counter(part["outcome"] for _, part in rows)
    return ", ".join(f"{count} '{outcome}'" for outcome, count in counts.items())
