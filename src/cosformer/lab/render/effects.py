"""The verdicts in one picture: by how much the first attention of a comparison is better than the second, with its interval."""

from collections.abc import Sequence
from typing import Any

from cosformer.lab.render.figure import Figure, canvas, svg
from cosformer.lab.render.palette import INK, RULE

WIDTH, ROW, TOP, BOTTOM, LEFT, RIGHT = 720, 30, 44, 52, 330, 130
OUTCOMES = {"holds here": "#009e73", "does not hold here": "#d55e00", "undecided": "#1a7fc1"}
REACH = 6.0  # margins to either side; what goes beyond is drawn to the edge and told in numbers


def effects(claims: Sequence[dict[str, Any]], margins: dict[str, float], name: str = "effects") -> Figure:
    """One row a comparison. Effects are divided by the margin of their unit (``margins``, by recipe), so that all share an axis;
    a comparison without runs has no interval, and one that is not judged is grey."""
    rows = [(claim, part) for claim in claims for part in claim["parts"]]
    height = TOP + BOTTOM + ROW * len(rows)
    words = [_words(claim, part) for claim, part in rows]
    title = "Effects, in margins: right of 0 is better"
    with canvas(WIDTH, height) as drawn:
        axes = drawn.add_axes((LEFT / WIDTH, BOTTOM / height, 1 - (LEFT + RIGHT) / WIDTH, 1 - (TOP + BOTTOM) / height))
        axes.set(xlim=(-REACH, REACH), ylim=(len(rows) - 0.5, -0.5), yticks=[])
        axes.set_xlabel("difference / margin, mean and 95 % interval")
        axes.axvline(0, color=INK, linewidth=1)
        axes.axvline(-1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.text(-1, -0.62, "margin", ha="right", va="bottom", color=INK)
        for place, (claim, part) in enumerate(rows):
            colour = OUTCOMES.get(claim["outcome"], RULE)
            label = f"{_side(part, 'first')} {'≥' if part['kind'] == 'on_par' else '>'} {_side(part, 'second')}, {claim['key']}"
            axes.text(-0.02, place, label, transform=axes.get_yaxis_transform(), ha="right", va="center", color=INK)
            axes.text(1.02, place, claim["outcome"], transform=axes.get_yaxis_transform(), va="center", color=colour)
            if "mean" in part:
                low, mean, high = (_clip(part[key] / margins[part["first_recipe"]]) for key in ("low", "mean", "high"))
                axes.plot([low, high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
                axes.plot([mean], [place], "o", color=colour, markersize=6)
        drawn.text(0.01, 1 - 20 / height, title, weight="bold", color=INK)
        alt = f"{title}. {' '.join(words)}"
        picture = svg(drawn, alt)
    return Figure(name, picture, "svg", alt, "Each comparison's mean effect and interval, divided by its margin.")


def _side(part: dict[str, Any], side: str) -> str:
    return (
        part[side]
        if part["first_recipe"] == part["second_recipe"]
        else f"{part[side]} ({part[f'{side}_recipe'].removeprefix('evidence-')})"
    )


def _clip(value: float) -> float:
    return max(-REACH, min(REACH, value))


def _words(claim: dict[str, Any], part: dict[str, Any]) -> str:
    what = f"{claim['key']}: {part['first']} against {part['second']}"
    if "mean" not in part:
        return f"{what}, {claim['outcome']}."
    return (
        f"{what}, {part['mean']:+.3g} {claim['unit']} ({part['low']:+.2g} to {part['high']:+.2g}), {claim['outcome']}."
    )
