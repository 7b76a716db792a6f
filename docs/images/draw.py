"""Draw the pictures of the documentation as SVG: from the committed results, and from the formulas.

`make pictures` writes them beside this file: the same numbers give the same bytes, so that a test can tell a stale
picture. Colours follow the reader's light or dark setting.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle

from cosformer.report.figure import canvas, svg
from cosformer.report.measurements import read_results

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "attention.json"

PAPER, INK, GRID, MUTED = "#ffffff", "#1f2430", "#d5d9e2", "#626b7c"
OURS, THEIRS, PALE, WARM = "#2463c4", "#b3480f", "#dfe8f8", "#f9e3d4"
DARK = {PAPER: "#1b1e26", INK: "#e6e8ee", GRID: "#3a4050", MUTED: "#a3abbb"}
DARK |= {OURS: "#82b1ff", THEIRS: "#ffab7a", PALE: "#263a5e", WARM: "#55331f"}
SMALL, NORMAL, TITLE = 13, 15, 17  # sizes of letters

Point = tuple[float, float]


class Sheet:
    """A drawing in pixels, from the top left corner."""

    def __init__(self, axes: Any) -> None:
        self.axes = axes

    def text(self, x: float, y: float, words: str, colour: str = INK, size: int = NORMAL, ha: str = "left") -> None:
        weight = "bold" if size == TITLE else "normal"
        self.axes.text(x, y, words, color=colour, fontsize=size, ha=ha, va="baseline", weight=weight)

    def curve(self, points: Sequence[Point], colour: str = INK, width: float = 1.5, **more: Any) -> None:
        self.axes.plot(*zip(*points, strict=True), color=colour, linewidth=width, **more)

    def dots(self, points: Sequence[Point], colour: str, radius: float) -> None:
        self.axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=2 * radius)

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=INK, linewidth=1.5))

    def arrow(self, start: Point, end: Point) -> None:
        angle = math.atan2(end[1] - start[1], end[0] - start[0])
        tips = [(end[0] - 9 * math.cos(angle + turn), end[1] - 9 * math.sin(angle + turn)) for turn in (0.45, -0.45)]
        self.curve([start, end, tips[0], end, tips[1]])


@contextmanager
def sheet(width: int, height: int, label: str) -> Iterator[tuple[Sheet, Callable[[], bytes]]]:
    """An empty sheet and what gives its SVG; ``label`` is what a screen reader says."""
    with canvas(width, height) as drawn:
        axes = drawn.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
        axes.set_axis_off()
        corners = FancyBboxPatch(
            (8, 8), width - 16, height - 16, boxstyle="round,pad=8", facecolor=PAPER, edgecolor="none"
        )
        axes.add_patch(corners)
        yield Sheet(axes), lambda: svg(drawn, label, DARK)


def speed() -> bytes:
    """Milliseconds of one causal forward pass against the length, both attentions, from the committed benchmark."""
    results = read_results(RESULTS)
    measured = {m.length or 0: m for m in results.find(kind="forward", mode="causal", baseline="sdpa")}
    times = {
        n: {"sdpa": m.baseline_milliseconds or 0.0, "cosformer": m.milliseconds or 0.0}
        for n, m in sorted(measured.items())
        if n >= 64
    }
    longest = max(times)
    left, right, top, bottom = 92, 700, 64, 350
    every = [value for pair in times.values() for value in pair.values()]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    first, last = math.log2(min(times)), math.log2(longest)

    def at(length: float, milliseconds: float) -> Point:
        x = left + (math.log2(length) - first) / (last - first) * (right - left)
        return x, bottom - (math.log10(milliseconds) - low) / (high - low) * (bottom - top)

    factor = f"{measured[longest].value:.0f} times faster"
    label = f"Time against length: at {longest:,} tokens cosFormer is {factor} than softmax attention"
    with sheet(800, 440, label) as (s, done):
        s.text(24, 34, "Time of one causal pass, by the length of the sequence", size=TITLE)
        for power in range(low, high + 1):
            y = at(longest, 10.0**power)[1]
            s.curve([(left, y), (right, y)], GRID)
            s.text(left - 10, y + 5, f"{10.0**power:,g} ms", MUTED, SMALL, "right")
        for length in times:
            s.text(at(length, 10.0**low)[0], bottom + 22, f"{length:,}", MUTED, SMALL, "center")
        s.text(left, bottom + 46, "tokens (both scales are logarithmic)", MUTED, SMALL)
        (x, y1), (_, y2) = (at(longest, times[longest][name]) for name in ("sdpa", "cosformer"))
        s.curve([(x, y1 + 8), (x, y2 - 8)], GRID)
        s.text(x - 10, (y1 + y2) / 2 + 26, factor, ha="right")
        for name, colour, words in (("sdpa", THEIRS, "softmax"), ("cosformer", OURS, "cosFormer")):
            points = [at(length, pair[name]) for length, pair in times.items()]
            s.curve(points, colour, 3)
            s.dots(points, colour, 4)
            s.text(right + 12, points[-1][1] + 5, words, colour)
        m = results.machine
        where = f"{m['cpu']}, {m['threads']} threads, torch {m['torch']}, float32, 8 heads of 64 channels"
        s.text(left, bottom + 66, f"{where}; softmax is torch's SDPA", MUTED, SMALL)
        return done()


def order() -> bytes:
    """The same product in two orders: N x N in the middle, or D x D."""
    n, d, top = 130, 34, 76
    middle = top + n / 2
    label = "Two orders of one product: (Q K) V goes through N by N pairs, Q (K V) through a D by D matrix"
    with sheet(800, 270, label) as (s, done):
        s.text(24, 34, "Softmax: every pair of tokens", THEIRS, TITLE)
        s.text(424, 34, "Linear: the sums come first", OURS, TITLE)
        # x, y, width, height, colour, the word in the middle
        boxes: list[tuple[float, float, float, float, str, str]] = [
            (40, top, d, n, PALE, "Q"),
            (100, middle - d / 2, n, d, PALE, "Kᵀ"),
            (262, top, n, n, WARM, "N × N"),
            (440, top, d, n, PALE, "Q"),
            (504, middle - d / 2, n, d, PALE, "Kᵀ"),
            (648, top, d, n, PALE, "V"),
            (730, middle - d / 2, d, d, WARM, ""),
        ]
        for x, y, width, height, colour, word in boxes:
            s.box(x, y, width, height, colour)
            s.text(x + width / 2, middle + 5, word, ha="center")
        for x, sign in ((242, "="), (710, "=")):
            s.text(x, middle + 5, sign)
        for x, sign in ((490, "("), (694, ")")):
            s.text(x, middle + 7, sign, size=TITLE)
        s.text(730 + d / 2, middle + d + 4, "D × D", size=SMALL, ha="center")
        s.text(40, top + n + 36, "(Q Kᵀ) V takes about N² · D multiplications", size=SMALL)
        s.text(440, top + n + 36, "Q (Kᵀ V) takes about N · D² multiplications", size=SMALL)
        return done()


def distance() -> bytes:
    """The factor of a pair by distance, for two values of max_len, and where it would turn negative."""
    left, right, top, bottom = 80, 740, 60, 300
    farthest = 6144

    def at(d: float, weight: float) -> Point:
        return left + d / farthest * (right - left), bottom - (weight + 0.45) / 1.45 * (bottom - top)

    label = "The cosine factor falls from one to zero at max_len and would turn negative beyond"
    with sheet(800, 360, label) as (s, done):
        s.text(24, 34, "How much a token counts, by its distance", size=TITLE)
        for weight in (0.0, 0.5, 1.0):
            s.curve([at(0, weight), at(farthest, weight)], GRID)
            s.text(left - 10, at(0, weight)[1] + 5, f"{weight:g}", MUTED, SMALL, "right")
        for d in (0, 1024, 2048, 4096, 6144):
            s.text(at(d, 0)[0], bottom + 22, f"{d:,}", MUTED, SMALL, "center")
        s.text(left, bottom + 44, "tokens between query and key", MUTED, SMALL)
        for max_len, colour in ((2048, THEIRS), (4096, OURS)):
            s.curve([at(d, math.cos(math.pi / 2 * d / max_len)) for d in range(0, max_len + 1, 64)], colour, 3)
            x, y = at(0.86 * max_len, math.cos(math.pi / 2 * 0.86))
            s.text(x + 12, y - 4, f"max_len = {max_len:,}", colour)
        beyond = [at(d, math.cos(math.pi / 2 * d / 4096)) for d in range(4096, 5300, 64)]
        s.curve(beyond, OURS, linestyle=(0, (5, 5)))
        s.text(at(4600, 0)[0], at(0, -0.3)[1], "past max_len: negative, so refused", MUTED, SMALL, "right")
        return done()


def decays() -> bytes:
    """The factor of each group of channels by distance in multiscale attention, and cosFormer's cosine beside them."""
    left, right, top, bottom, farthest = 80, 660, 60, 300, 4096

    def at(d: float, weight: float) -> Point:
        return left + math.log2(d) / math.log2(farthest) * (right - left), bottom - weight * (bottom - top)

    label = (
        "Each group of channels fades at its own rate, from about one token to max_len; the cosine only fades at "
        "max_len"
    )
    with sheet(800, 380, label) as (s, done):
        s.text(24, 34, "How much a token counts, by its distance: eight groups of channels of one head", size=TITLE)
        for weight in (0.0, 0.5, 1.0):
            s.curve([(left, at(1, weight)[1]), (right, at(1, weight)[1])], GRID)
            s.text(left - 10, at(1, weight)[1] + 5, f"{weight:g}", MUTED, SMALL, "right")
        for d in (1, 4, 16, 64, 256, 1024, 4096):
            s.text(at(d, 0)[0], bottom + 22, f"{d:,}", MUTED, SMALL, "center")
        s.text(left, bottom + 44, "tokens between query and key (logarithmic scale); max_len = 4,096", MUTED, SMALL)
        distances = [2 ** (step / 8) for step in range(8 * 12 + 1)]
        for group in range(8):
            rate = farthest ** (-group / 7)
            s.curve([at(d, math.exp(-rate * d)) for d in distances], OURS, 2)
        s.curve([at(d, math.cos(math.pi / 2 * d / farthest)) for d in distances], THEIRS, 3, linestyle=(0, (5, 5)))
        s.text(right + 12, at(1, 0.4)[1], "decays", OURS)
        s.text(right + 12, at(1, 0.0)[1] + 4, "cosine", THEIRS)
        return done()


def angles() -> bytes:
    """Positions on a quarter circle: the factor of a pair is the cosine of the angle between them."""
    cx, cy, radius = 70, 330, 260

    def at(turn: float, r: float = radius) -> Point:
        return cx + r * math.cos(turn), cy - r * math.sin(turn)

    quarter = math.pi / 2
    label = "Positions as angles of a quarter circle; a pair is weighted by the cosine of their difference"
    with sheet(800, 370, label) as (s, done):
        s.text(24, 34, "A position is an angle", size=TITLE)
        s.curve([at(0), (cx, cy), at(quarter)], GRID)
        s.curve([at(quarter * step / 60) for step in range(61)])
        s.dots([at(quarter * i / 16) for i in range(17)], MUTED, 3)
        key, query = quarter * 4 / 16, quarter * 10 / 16
        for turn, colour, words in ((key, THEIRS, "key j"), (query, OURS, "query i")):
            s.arrow((cx, cy), at(turn))
            s.dots([at(turn)], colour, 6)
            s.text(*at(turn, radius + 16), words, colour)
        s.curve([at(key + (query - key) * step / 20, 90) for step in range(21)], OURS, 3)
        s.text(*at((key + query) / 2, 104), "aᵢ − aⱼ", size=SMALL)
        s.text(cx + radius + 4, cy + 22, "first token", MUTED, SMALL, "right")
        s.text(cx + 12, cy - radius - 8, "position max_len", MUTED, SMALL)
        for y, what, formula in (
            (76, "angle of position i", "aᵢ = (π / 2) · i / max_len"),
            (146, "factor of the pair", "cos(aᵢ − aⱼ) = cos aᵢ · cos aⱼ + sin aᵢ · sin aⱼ"),
            (216, "features", "Φ(x) at angle a = [ x⁺ cos a ,  x⁺ sin a ]"),
        ):
            s.text(410, y, what, MUTED)
            s.text(410, y + 28, formula)
        s.text(410, 280, "Both angles lie in the quarter circle, so every", MUTED, SMALL)
        s.text(410, 300, "feature and every weight is at least zero.", MUTED, SMALL)
        return done()


def chunks() -> bytes:
    """Causal attention: triangles of one chunk on the diagonal, one state for all that lies before."""
    size, left, top = 56, 40, 64
    label = "Causal attention in chunks: triangles on the diagonal, and a state of fixed size for earlier keys"
    with sheet(800, 380, label) as (s, done):
        s.text(24, 34, "Causal: small triangles and one state", size=TITLE)
        for row in range(5):
            x, y = left + row * size, top + row * size
            if row:
                s.box(left, y, row * size, size, PALE)
                words = "state" if row == 1 else f"{row} chunks"
                s.text(left + row * size / 2, y + size / 2 + 5, words, size=SMALL, ha="center")
            corners = [(x, y), (x, y + size), (x + size, y + size)]
            s.axes.add_patch(Polygon(corners, facecolor=WARM, edgecolor=INK, linewidth=1.5))
        s.text(left, top + 5 * size + 26, "keys →", MUTED, SMALL)
        for y, words, colour, letters in (
            (100, "On the diagonal", THEIRS, NORMAL),
            (124, "the pairs of a chunk among themselves,", INK, SMALL),
            (144, "a small matrix that fits the cache", INK, SMALL),
            (190, "Left of it", OURS, NORMAL),
            (214, "all earlier keys, as two sums of fixed size:", INK, SMALL),
            (234, "Σ Φ(k) vᵀ  and  Σ Φ(k)", INK, SMALL),
            (280, "Generation is the same with chunks of one token.", MUTED, SMALL),
        ):
            s.text(390, y, words, colour, letters)
        return done()


# file -> what draws it
PICTURES: dict[str, Callable[[], bytes]] = {
    "speed.svg": speed,
    "order.svg": order,
    "distance.svg": distance,
    "decays.svg": decays,
    "angles.svg": angles,
    "chunks.svg": chunks,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (HERE / name).write_bytes(draw())
        print(HERE / name)


if __name__ == "__main__":
    main()
