"""Matrices of weights as pictures: a grid of panels, blue where positive, orange where negative, clear where zero."""

import base64
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO

import numpy as np

from cosformer.extras import require
from cosformer.lab.render.chart import FONT, text
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.palette import FAINT, INK, INK_DARK, NEGATIVE, POSITIVE
from cosformer.lab.render.png import png

FINEST = 256  # pixels of a panel at the most; larger matrices are averaged in blocks
LABELLED = 64  # tokens at the most that stand beside a single panel
_WIDTH, _GAP, _HEAD, _FOOT = 420, 10, 18, 22


@dataclass(frozen=True)
class Panel:
    """One matrix [N,S]: row i is what query i gives to each key. ``full``: the weight of full colour; None: the panel's own."""

    title: str
    matrix: np.ndarray
    full: float | None = None


def heat_maps(
    panels: Sequence[Panel],
    *,
    name: str,
    title: str,
    caption: str,
    tokens: Sequence[str] = (),
    columns: int = 4,
    ends: tuple[str, str] | None = None,
) -> Figure:
    """An SVG with one panel after the other. A single panel shows its ``tokens`` on both sides. ``ends``: what no colour
    and full colour mean, for a scale below the panels."""
    if not panels:
        raise ValueError(f"nothing to draw in {title!r}: no matrix")
    columns = min(columns, len(panels))
    labelled = len(panels) == 1 and 0 < len(tokens) <= LABELLED
    margin = 8 + 6 * max(map(len, tokens)) if labelled else 0
    side = (_WIDTH - _GAP * (columns - 1) - margin) / columns
    rows = math.ceil(len(panels) / columns)
    height = rows * (side + _HEAD + _GAP) + margin + (_FOOT if ends else 0)
    parts = []
    for i, panel in enumerate(panels):
        left, top = (i % columns) * (side + _GAP) + margin, (i // columns) * (side + _HEAD + _GAP)
        size = 10 if columns > 3 else FONT
        parts.append(text(left, top + 13, panel.title, more=f' style="font-weight:600;font-size:{size}px"'))
        parts.append(_picture(panel, left, top + _HEAD, side))
    parts += _scale(height - _FOOT, *ends) if ends else []
    if labelled:
        parts += _labels(tokens, margin, _HEAD, side)
    alt = f"{title}. {' '.join(map(_words, panels))}"
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}"'
        f' role="img"><title>{escape(alt)}</title><style>text{{font:{FONT}px system-ui,sans-serif;fill:{INK}}}'
        f"@media(prefers-color-scheme:dark){{.i{{fill:{INK_DARK}}}}}</style>{''.join(parts)}</svg>"
    )
    return Figure(name, svg.encode(), "svg", alt, caption)


def colours(matrix: np.ndarray, full: float | None = None) -> np.ndarray:
    """uint8 [N,S,4]: the sign is the colour, the size the opacity, so that it reads on a light and on a dark page."""
    matrix = coarse(np.nan_to_num(np.asarray(matrix, dtype=np.float64)), FINEST)
    # a few large weights, as on the diagonal, must not make the rest invisible
    own = max(float(np.quantile(np.abs(matrix), 0.99)), float(np.abs(matrix).max()) / 8, 1e-12)
    limit = own if full is None else full
    pixels = np.empty((*matrix.shape, 4), np.uint8)
    pixels[..., :3] = np.where((matrix >= 0)[..., None], np.array(POSITIVE), np.array(NEGATIVE))
    pixels[..., 3] = np.round(255 * np.minimum(np.abs(matrix) / limit, 1))
    return pixels


def as_png(panels: Sequence[Panel], *, title: str, tokens: Sequence[str] = (), columns: int = 4) -> bytes:
    """The same grid as one PNG on white; needs matplotlib, for the letters."""
    require("plot", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = 7.0 if len(panels) == 1 else 2.2
    figure = Canvas(figsize=(size * columns, size * rows + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    how = "queries down, keys across" + ("" if len(panels) == 1 else "; each panel has its own scale")
    figure.suptitle(f"{textwrap.fill(title, round(12 * size * columns))}\n{how}", fontsize=10)
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.set_axis_off()
    for panel, axes in zip(panels, figure.axes, strict=False):
        axes.imshow(colours(panel.matrix, panel.full), interpolation="nearest")
        axes.set_title(panel.title, fontsize=8)
        axes.set(xticks=[], yticks=[])
        axes.set_axis_on()
        if len(panels) == 1 and 0 < len(tokens) <= LABELLED:
            shown = [_visible(token) for token in tokens]
            axes.set_xticks(range(len(tokens)), shown, rotation=90, fontsize=7)
            axes.set_yticks(range(len(tokens)), shown, fontsize=7)
    out = BytesIO()
    figure.savefig(out, format="png", dpi=110, facecolor="white")
    return out.getvalue()


def _scale(top: float, clear: str, full: str) -> list[str]:
    """From clear to blue, with a word at either end, and which way queries and keys go."""
    left, width, small = 6 + 6.0 * len(clear), 90, ' style="font-size:11px"'
    ramp = colours(np.linspace(0, 1, 64)[None], 1.0)
    place = f'x="{left:.1f}" y="{top + 4:.1f}" width="{width}" height="11"'
    return [
        text(0, top + 14, clear, more=small),
        f'<image {place} preserveAspectRatio="none" href="data:image/png;base64,{base64.b64encode(png(ramp)).decode()}"/>',
        f'<rect {place} fill="none" stroke="{FAINT}"/>',
        text(left + width + 5, top + 14, full, more=small),
        text(_WIDTH, top + 14, "queries down, keys across", "end", small),
    ]


def _picture(panel: Panel, x: float, y: float, side: float) -> str:
    data = base64.b64encode(png(colours(panel.matrix, panel.full))).decode()
    place = f'x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}"'
    return (
        f'<image {place} preserveAspectRatio="none" style="image-rendering:pixelated"'
        f' href="data:image/png;base64,{data}"/><rect {place} fill="none" stroke="{FAINT}"/>'
    )


def _labels(tokens: Sequence[str], left: float, top: float, side: float) -> list[str]:
    step = side / len(tokens)
    size = f' style="font-size:{min(11.0, step):.1f}px"'
    parts = []
    for i, token in enumerate(map(_visible, tokens)):
        middle = (i + 0.5) * step
        parts.append(text(left - 4, top + middle + step / 3, token, "end", size))
        x, y = left + middle + step / 3, top + side + 4
        parts.append(text(x, y, token, "end", f'{size} transform="rotate(-90 {x:.1f} {y:.1f})"'))
    return parts


def _visible(token: str) -> str:
    return token.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")


def coarse(matrix: np.ndarray, finest: int) -> np.ndarray:
    """At most ``finest`` rows and columns: means over blocks."""
    for axis in (0, 1):
        size = matrix.shape[axis]
        if size > finest:
            edges = np.linspace(0, size, finest + 1).astype(int)
            counts = np.diff(edges).reshape((-1, 1) if axis == 0 else (1, -1))
            matrix = np.add.reduceat(matrix, edges[:-1], axis=axis) / counts
    return matrix


def _words(panel: Panel) -> str:
    """How far the weights look, for those who do not see the picture."""
    matrix = np.abs(np.nan_to_num(np.asarray(panel.matrix, dtype=np.float64)))
    n, s = matrix.shape
    total = matrix.sum()
    if not total:
        return f"{panel.title}: {n} by {s}, all zero."
    away = np.abs(np.arange(n)[:, None] - np.arange(s))
    near = matrix[away <= max(n, s) // 16].sum() / total
    return (
        f"{panel.title}: {n} by {s}, {near:.0%} of the weight within {max(n, s) // 16} positions of the diagonal, "
        f"mean distance {(matrix * away).sum() / total:.1f}."
    )
