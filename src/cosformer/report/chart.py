"""Lines or bubbles over two axes, each with its name beside it instead of a legend."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cosformer.report.figure import canvas, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = [
    "Bubble",
    "Line",
    "draw_bubbles",
    "draw_lines",
]

WIDTH, HEIGHT, FONT = 420, 300, 12.5
_TOP, _BOTTOM, _LEFT = 44, 46, 54  # above the highest tick there is room for title and unit
_LETTER = 6.6  # width of a letter at FONT, on average


@dataclass(frozen=True)
class Line:
    """``label`` stands at the end of the line; without one the line is thin: one of several behind their mean.
    ``crosses``: x where there is no value because memory ran out."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashes: tuple[int, ...] = ()
    crosses: Sequence[float] = ()


@dataclass(frozen=True)
class Bubble:
    """A circle whose area is ``size``; None: drawn as a small ring, the size is not known."""

    label: str
    x: float
    y: float
    size: float | None
    colour: str


def draw_lines(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    alt: str,
    lengths: Sequence[float] = (),
    crosses_low: bool = False,
) -> bytes:
    """The SVG. ``lengths``: both axes are logarithmic and these are labelled below. ``crosses_low``: at the foot, not the top."""
    if not any(line.points for line in lines):
        raise ValueError(f"nothing to draw in {title!r}: no line has a point")
    named = [line for line in lines if line.label and line.points]
    right = max(12.0, 14 + _LETTER * max((len(line.label) for line in named), default=0))
    with canvas(WIDTH, HEIGHT) as drawn:
        axes = _axes(drawn, title, x_label, y_label, right)
        axes.margins(0.04)
        if lengths:
            axes.set(xscale="log", yscale="log")
        for i, line in enumerate(lines):
            look = {"color": line.colour, "gid": f"line-{i}"} | ({} if line.label else {"linewidth": 1, "alpha": 0.38})
            marker = {"marker": "o", "markersize": 5.6} if line.label and len(line.points) <= 12 else {}
            (path,) = axes.plot(*zip(*line.points, strict=True), **look, **marker) if line.points else [None]
            if path is not None and line.label and line.dashes:
                path.set_linestyle((0, line.dashes))
        cross = {"marker": "x", "markersize": 8, "markeredgewidth": 2, "linestyle": "none", "clip_on": False}
        cross |= {"transform": axes.get_xaxis_transform()}
        for i, line in enumerate(lines):
            for x in line.crosses:
                axes.plot(x, 0.03 if crosses_low else 0.97, color=line.colour, gid=f"cross-{i}-{x:g}", **cross)
        _ticks(axes, lengths)
        places = _apart([_pixels(axes, *line.points[-1])[1] for line in named], axes.bbox.y0, axes.bbox.y1)
        for line, y in zip(named, places, strict=True):
            drawn.text((axes.bbox.x1 + 7) / WIDTH, (y - 4) / HEIGHT, line.label, color=line.colour, va="baseline")
        return svg(drawn, alt)


def draw_bubbles(bubbles: Sequence[Bubble], *, title: str, x_label: str, y_label: str, alt: str) -> bytes:
    """The SVG; the x axis is logarithmic."""
    if not bubbles:
        raise ValueError(f"nothing to draw in {title!r}: no bubble")
    largest = max((b.size for b in bubbles if b.size), default=1.0)
    with canvas(WIDTH, HEIGHT) as drawn:
        axes = _axes(drawn, title, x_label, y_label, right=12)
        axes.margins(0.16)
        axes.set_xscale("log")
        circles = []
        for b in sorted(bubbles, key=lambda b: -(b.size or 0)):  # small ones on top
            radius = 5.0 if b.size is None else max(3.0, 22 * math.sqrt(b.size / largest))
            look: dict[str, Any] = {"markerfacecolor": "none" if b.size is None else f"{b.colour}59"}
            look |= {"markeredgecolor": b.colour, "markeredgewidth": 1.5, "gid": f"bubble-{b.label}", "clip_on": False}
            axes.plot(b.x, b.y, "o", markersize=2 * radius, **look)
            circles.append((b, radius))
        _ticks(axes, ())
        _label(drawn, axes, circles)
        return svg(drawn, alt)


def length(value: float) -> str:
    """A sequence length: 16384 is 16K."""
    return f"{value / 1024:g}K" if value >= 1024 and value % 1024 == 0 else f"{value:,.0f}"


def short(value: float, digits: int = 3) -> str:
    """A number for an axis: 4096 is 4,096."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 0.001 else f"{value:.0e}"


def _digits(ticks: Sequence[float]) -> int:
    """As few as tell the ticks of an axis apart, but at least three."""
    return next((n for n in range(3, 9) if len({short(x, n) for x in ticks}) == len(ticks)), 9)


def _axes(drawn: "Canvas", title: str, x_label: str, y_label: str, right: float) -> "Axes":
    place = (_LEFT / WIDTH, _BOTTOM / HEIGHT, (WIDTH - right - _LEFT) / WIDTH, (HEIGHT - _TOP - _BOTTOM) / HEIGHT)
    axes = drawn.add_axes(place)
    axes.spines["bottom"].set_alpha(0.6)
    axes.set_xlabel(x_label)
    drawn.text(12 / WIDTH, 1 - 16 / HEIGHT, title, weight="bold", va="baseline")
    drawn.text(12 / WIDTH, 1 - 32 / HEIGHT, y_label, fontsize=11, va="baseline")
    return axes


def _ticks(axes: "Axes", lengths: Sequence[float]) -> None:
    """Round numbers, few of them; under a logarithmic axis those of ``lengths`` whose labels do not touch."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    for axis, low, high in ((axes.xaxis, *axes.get_xlim()), (axes.yaxis, *axes.get_ylim())):
        axis.set_minor_locator(NullLocator())
        if axis.get_scale() == "log":
            tens = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1
            axis.set_major_locator(LogLocator(subs=(1,) if tens >= 3 else (1, 2, 5), numticks=12))
        else:
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        digits = _digits(list(axis.get_majorticklocs()))
        axis.set_major_formatter(lambda value, position, digits=digits: short(value, digits))
    if lengths:
        kept, last = [], -math.inf
        for n in lengths:
            middle, half = _pixels(axes, n, axes.get_ylim()[0])[0], len(length(n)) * _LETTER / 2
            if middle - half > last + 4:
                kept.append(n)
                last = middle + half
        axes.set_xticks(kept, [length(n) for n in kept])


def _pixels(axes: "Axes", x: float, y: float) -> tuple[float, float]:
    found = axes.transData.transform((x, y))
    return float(found[0]), float(found[1])


def _apart(heights: Sequence[float], bottom: float, top: float) -> list[float]:
    """The labels' heights, moved up and then down until none covers another."""
    gap = FONT + 1
    order = sorted(range(len(heights)), key=heights.__getitem__)
    places = [heights[i] for i in order]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    limit = max(top, bottom + gap * (len(places) - 1))
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - gap
    return [place for _, place in sorted(zip(order, places, strict=True))]


Box = tuple[float, float, float, float]  # left, bottom, right, top


def _label(drawn: "Canvas", axes: "Axes", circles: Sequence[tuple[Bubble, float]]) -> None:
    """Each circle's name beside it, where there is room; further away with a line to it."""
    middles = [_pixels(axes, b.x, b.y) for b, _ in circles]
    taken = [(x - r, y - r, x + r, y + r) for (x, y), (_, r) in zip(middles, circles, strict=True)]
    for (x, y), (b, radius) in zip(middles, circles, strict=True):
        box = _free_place(x, y, radius, len(b.label) * _LETTER, taken)
        taken.append(box)
        near = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
        away = math.dist((x, y), near)
        if away > radius + FONT / 2:
            start = x + (near[0] - x) * radius / away, y + (near[1] - y) * radius / away
            ends = [[point[i] / size for point in (start, near)] for i, size in ((0, WIDTH), (1, HEIGHT))]
            look = {"color": b.colour, "linewidth": 0.8, "gid": f"leader-{b.label}", "clip_on": False}
            axes.plot(*ends, transform=drawn.transFigure, **look)
        drawn.text(box[0] / WIDTH, (box[1] + 3) / HEIGHT, b.label, color=b.colour, va="baseline")


def _free_place(x: float, y: float, radius: float, width: float, taken: Sequence[Box]) -> Box:
    """Where a label of ``width`` beside a circle covers least of what is there: right, left, above, below, or aslant."""
    height, away = FONT + 1, radius + 4

    def covered(box: Box) -> float:
        shared = ((min(box[2], t[2]) - max(box[0], t[0]), min(box[3], t[3]) - max(box[1], t[1])) for t in taken)
        beyond = (box[2] - WIDTH, -box[0], _BOTTOM - box[1], box[3] - HEIGHT + _TOP)
        return sum(w * h for w, h in shared if w > 0 and h > 0) + 1000 * sum(max(0.0, x) for x in beyond)

    right, left, middle = x + away, x - away - width, x - width / 2
    level, above, below = y - height / 2, y + away, y - away - height
    corners = [(right, level), (left, level), (middle, above), (middle, below)]
    corners += [(a, b) for b in (above, below, above + height, below - height) for a in (x, x - width, middle)]
    return min(((a, b, a + width, b + height) for a, b in corners), key=covered)  # the first of equals
