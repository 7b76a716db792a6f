"""A small chart: lines or bubbles over two axes, as an SVG with text that stays text and follows a dark page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cosformer.lab.render.palette import FAINT, INK, INK_DARK

WIDTH, HEIGHT, FONT = 420, 300, 12.5
_LETTER = 6.6  # width of a letter at FONT, on average
_TOP, _BOTTOM, _LEFT = 44, 46, 54  # above the highest tick there is room for title and unit
_FAMILY = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


@dataclass(frozen=True)
class Line:
    """``label`` stands at the end of the line; without one the line is thin: one of several behind their mean.
    ``crosses``: x where there is no value because memory ran out."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashes: str = ""
    crosses: Sequence[float] = ()


@dataclass(frozen=True)
class Bubble:
    """A circle whose area is ``size``; None: drawn as a ring, the size is not known."""

    label: str
    x: float
    y: float
    size: float | None
    colour: str


@dataclass(frozen=True)
class Chart:
    """``ticks``: where the x axis is labelled; None: at round numbers. ``crosses_low``: crosses at the foot, not the top."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line] = ()
    bubbles: Sequence[Bubble] = ()
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[float] | None = None
    crosses_low: bool = False


class _Axis:
    """Values to pixels, straight or logarithmic."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, log: bool, ticks: Sequence[float] | None, margin: float
    ) -> None:
        self.log, self.start, self.end = log, start, end
        low, high = self._grow(min(values), max(values), margin)
        self.low, self.high = low, high
        own = _log_ticks(low, high) if log else _round_ticks(low, high)
        self.ticks = [t for t in (own if ticks is None else ticks) if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]

    def _grow(self, low: float, high: float, share: float) -> tuple[float, float]:
        if self.log:
            margin = max((high / low) ** share, 1.02)
            return low / margin, high * margin
        margin = share * (high - low) or abs(high) * 0.1 or 1.0
        return low - margin, high + margin

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        place = ((math.log(value) if self.log else value) - low) / (high - low)
        return self.start + place * (self.end - self.start)


def draw(chart: Chart, alt: str) -> str:
    """The SVG. ``alt`` becomes its title, for screen readers."""
    values = [p for line in chart.lines for p in line.points] + [(b.x, b.y) for b in chart.bubbles]
    if not values:
        raise ValueError(f"nothing to draw in {chart.title!r}: no line has a point")
    labels = [line.label for line in chart.lines if line.label and line.points]
    right = max(12.0, 12 + _LETTER * max(map(len, labels), default=0))
    xs = [v[0] for v in values] + [x for line in chart.lines for x in line.crosses]
    margin = 0.16 if chart.bubbles else 0.04  # of the span, beyond the first and the last point
    x = _Axis(xs, _LEFT, WIDTH - right, chart.log_x, chart.ticks, margin)
    y = _Axis([v[1] for v in values], HEIGHT - _BOTTOM, _TOP, chart.log_y, None, margin)
    parts = [*_frame(chart, x, y), *_lines(chart, x, y), *_bubbles(chart, x, y)]
    style = (
        f"text{{font:{FONT}px {_FAMILY};fill:{INK}}}.t{{font-weight:600}}"
        f"@media(prefers-color-scheme:dark){{.i{{fill:{INK_DARK}}}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">'
        f"<title>{escape(alt)}</title><style>{style}</style>{''.join(parts)}</svg>"
    )


def text(x: float, y: float, content: str, anchor: str = "start", more: str = "") -> str:
    """One line of text at a point; in the colour of the page's ink unless ``more`` gives another."""
    ink = "" if "fill" in more else ' class="i"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{ink}{more}>{escape(content)}</text>'


def short(value: float) -> str:
    """A number for an axis: 4096 is 4,096 and powers of ten are short."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.0e}"


def length(value: float) -> str:
    """A sequence length: 16384 is 16K."""
    return f"{value / 1024:g}K" if value >= 1024 and value % 1024 == 0 else f"{value:,.0f}"


def _frame(chart: Chart, x: _Axis, y: _Axis) -> list[str]:
    name = length if chart.ticks is not None else short
    parts = [text(_LEFT - 42, 16, chart.title, more=' style="font-weight:600"')]
    for tick in y.ticks:
        parts.append(f'<path d="M{x.start:.1f} {y(tick):.1f}H{x.end:.1f}" stroke="{FAINT}"/>')
        parts.append(text(_LEFT - 7, y(tick) + 4, short(tick), "end"))
    last = -math.inf
    for tick in x.ticks:
        half = len(name(tick)) * _LETTER / 2
        if x(tick) - half > last + 4:  # labels that would touch are left out
            parts.append(text(x(tick), HEIGHT - _BOTTOM + 18, name(tick), "middle"))
            last = x(tick) + half
    parts.append(f'<path d="M{x.start:.1f} {y.start:.1f}H{x.end:.1f}" stroke="{INK}" stroke-opacity=".6"/>')
    parts.append(text((x.start + x.end) / 2, HEIGHT - 8, chart.x_label, "middle"))
    parts.append(text(_LEFT - 42, 32, chart.y_label, more=' style="font-size:11px"') if chart.y_label else "")
    return parts


def _lines(chart: Chart, x: _Axis, y: _Axis) -> list[str]:
    parts = []
    edge = y.start - 6 if chart.crosses_low else y.end + 6
    for line in chart.lines:
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in line.points)
        look = 'stroke-width="2.2"' if line.label else 'stroke-width="1" stroke-opacity=".38"'
        dashes = f' stroke-dasharray="{line.dashes}"' if line.dashes and line.label else ""
        if path:
            parts.append(
                f'<path class="line" d="M{path}" fill="none" stroke="{line.colour}" {look}{dashes} stroke-linejoin="round"/>'
            )
        if line.label and len(line.points) <= 12:
            parts += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.8" fill="{line.colour}"/>' for a, b in line.points]
        parts += [
            f'<path class="cross" d="M{x(a) - 4:.1f} {edge - 4:.1f}l8 8m0-8l-8 8" stroke="{line.colour}" stroke-width="2"/>'
            for a in line.crosses
        ]
    ends = [(y(line.points[-1][1]), line) for line in chart.lines if line.label and line.points]
    for place, line in _apart(ends, y.end, y.start):
        parts.append(text(x.end + 7, place + 4, line.label, more=f' fill="{line.colour}" style="fill:{line.colour}"'))
    return parts


def _apart(ends: list[tuple[float, Line]], top: float, bottom: float) -> list[tuple[float, Line]]:
    """The labels' heights, moved down and then up until none covers another."""
    gap = FONT + 1
    order = sorted(ends, key=lambda end: end[0])
    places = [place for place, _ in order]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    limit = max(bottom, top + gap * (len(places) - 1))
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - gap
    return [(place, line) for place, (_, line) in zip(places, order, strict=True)]


def _bubbles(chart: Chart, x: _Axis, y: _Axis) -> list[str]:
    largest = max((b.size for b in chart.bubbles if b.size), default=1.0)
    parts, circles = [], []
    for b in sorted(chart.bubbles, key=lambda b: -(b.size or 0)):  # small ones on top
        radius = 5.0 if b.size is None else max(3.0, 22 * math.sqrt(b.size / largest))
        fill = "none" if b.size is None else b.colour
        parts.append(
            f'<circle class="bubble" cx="{x(b.x):.1f}" cy="{y(b.y):.1f}" r="{radius:.1f}" fill="{fill}" fill-opacity=".35"'
            f' stroke="{b.colour}" stroke-width="1.5"/>'
        )
        circles.append((x(b.x), y(b.y), radius, b))
    taken = [(cx - r, cy - r, cx + r, cy + r) for cx, cy, r, _ in circles]
    for cx, cy, radius, b in circles:
        box = _free_place(cx, cy, radius, len(b.label) * _LETTER, taken)
        taken.append(box)
        near = min(max(cx, box[0]), box[2]), min(max(cy, box[1]), box[3])
        away = math.dist((cx, cy), near)
        if away > radius + FONT / 2:  # not beside its circle: a line leads to it
            start = cx + (near[0] - cx) * radius / away, cy + (near[1] - cy) * radius / away
            ends = f"M{start[0]:.1f} {start[1]:.1f}L{near[0]:.1f} {near[1]:.1f}"
            parts.append(f'<path class="leader" d="{ends}" stroke="{b.colour}" stroke-width=".8"/>')
        parts.append(text(box[0], box[3] - 3, b.label, more=f' fill="{b.colour}" style="fill:{b.colour}"'))
    return parts


Box = tuple[float, float, float, float]  # left, top, right, bottom


def _free_place(cx: float, cy: float, radius: float, width: float, taken: list[Box]) -> Box:
    """Where a label of ``width`` beside a circle covers least of what is there: right, left, above, below, or aslant."""
    height, away = FONT + 1, radius + 4

    def covered(box: Box) -> float:
        shared = ((min(box[2], t[2]) - max(box[0], t[0]), min(box[3], t[3]) - max(box[1], t[1])) for t in taken)
        outside = (
            max(0.0, box[2] - WIDTH) + max(0.0, -box[0]) + max(0.0, _TOP - box[1]) + max(0.0, box[3] - HEIGHT + _BOTTOM)
        )
        return sum(w * h for w, h in shared if w > 0 and h > 0) + 1000 * outside

    right, left, middle = cx + away, cx - away - width, cx - width / 2
    level, above, below = cy - height / 2, cy - away - height, cy + away
    corners = [(right, level), (left, level), (middle, above), (middle, below)]
    corners += [(a, b) for b in (above, below, above - height, below + height) for a in (cx, cx - width, middle)]
    boxes = [(a, b, a + width, b + height) for a, b in corners]
    return min(boxes, key=covered)  # the first of equals


def _round_ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw)
    first = math.ceil(low / step)
    return [round(i * step, 12) for i in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    tens = [10.0**p for p in powers]
    within = [t for t in tens if low <= t <= high]
    if len(within) >= 3:
        return within
    return [t for t in (m * ten for ten in tens for m in (1, 2, 5)) if low <= t <= high] or [low, high]
