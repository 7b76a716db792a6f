"""Matrices of weights as pictures: a grid of panels, blue where positive, orange where negative, clear where zero."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cosformer.report.figure import NEGATIVE, POSITIVE, RULE, Figure, canvas, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = [
    "Panel",
    "as_png",
    "coarse",
    "heat_maps",
    "layer_figure",
    "layer_maps",
]

MAPS_FILE = "maps.npz"  # in a run's folder: what a report shows
FINEST = 256  # pixels of a panel at the most; larger matrices are averaged in blocks
_SMALLEST = 6.0  # pixels that a token needs beside a panel
_WIDTH, _GAP, _HEAD, _FOOT = 420, 10, 18, 22
_LETTER = 6.5  # width of a letter of a token, at most


@dataclass(frozen=True)
class Panel:
    """One matrix [N,S], queries by keys. ``full``: the weight of full colour; None: the panel's maximum."""

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
    """An SVG with one panel after the other. Panels show their ``tokens`` on both sides where there is room. ``ends``:
    what no colour and full colour mean, for a scale below the panels."""
    if not panels:
        raise ValueError(f"nothing to draw in {title!r}: no matrix")
    alt = f"{title}. {' '.join(map(_words, panels))}"
    with _grid(panels, tokens, columns, foot=_FOOT if ends else 0) as drawn:
        if ends:
            _scale(drawn, *ends)
        return Figure(name, svg(drawn, alt), "svg", alt, caption)


def as_png(
    panels: Sequence[Panel], *, title: str, tokens: Sequence[str] = (), columns: int = 4, dpi: int = 144
) -> bytes:
    """The same grid as one PNG on white, below its title."""
    width = max(_WIDTH, 110 * min(columns, len(panels)))
    how = "queries down, keys across" + ("" if len(panels) == 1 else "; each panel has its own scale")
    words = [*textwrap.wrap(title, width // 7), how]
    with _grid(panels, tokens, columns, width=width, head=16 * len(words) + 8) as drawn:
        height = drawn.bbox.height
        for i, line in enumerate(words):
            weight = "bold" if i < len(words) - 1 else "normal"
            drawn.text(0, 1 - (16 * i + 13) / height, line, va="baseline", weight=weight)
        out, look = BytesIO(), {"facecolor": "white", "bbox_inches": "tight", "pad_inches": 0.1}
        drawn.savefig(out, format="png", dpi=dpi, metadata={"Software": None}, **look)
        return out.getvalue()


def layer_figure(weights: np.ndarray, tokens: Sequence[str], layer: int, heads: Sequence[int], columns: int) -> Figure:
    """The heads of one layer, ``weights`` [H,N,N]; layers and heads count from 0 here and from 1 in the picture."""
    title = f"Layer {layer + 1}"
    panels = [Panel(f"layer {layer + 1}, head {head + 1}", weights[i]) for i, head in enumerate(heads)]
    caption = (
        f"{title}: queries down, keys across; blue is positive, orange negative, and each panel has its own scale."
    )
    look = {"tokens": tokens, "columns": columns, "ends": ("0", "largest of the panel")}
    return heat_maps(panels, name=f"layer-{layer + 1}", title=title, caption=caption, **look)


def layer_maps(path: Path) -> list[Figure]:
    """What `cosformer visualize RUN -o RUN/maps.npz` kept: a figure a layer."""
    with np.load(path) as kept:
        weights, tokens = kept["weights"], [str(token) for token in kept["tokens"]]
    return [layer_figure(of_layer, tokens, i, range(len(of_layer)), 2) for i, of_layer in enumerate(weights)]


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


@contextmanager
def _grid(
    panels: Sequence[Panel],
    tokens: Sequence[str],
    columns: int,
    *,
    width: float = _WIDTH,
    head: float = 0,
    foot: float = 0,
) -> "Iterator[Canvas]":
    """The panels on a canvas, with ``head`` pixels free above and ``foot`` below them."""
    columns = min(columns, len(panels))
    margin = 12 + _LETTER * max(map(len, tokens), default=0)
    side = (width - _GAP * (columns - 1)) / columns - margin
    labelled = len(tokens) > 0 and side / len(tokens) >= _SMALLEST
    if not labelled:
        side, margin = side + margin, 0.0
    rows = math.ceil(len(panels) / columns)
    height = math.ceil(head + rows * (side + _HEAD + margin) + (rows - 1) * _GAP + foot + 1)
    with canvas(width, height) as drawn:
        for i, panel in enumerate(panels):
            row, column = divmod(i, columns)
            left, top = column * (side + margin + _GAP) + margin, head + _HEAD + row * (side + margin + _HEAD + _GAP)
            axes = _picture(drawn, colours(panel.matrix, panel.full), left, top, side, side)
            size = 10 if columns > 3 else 12.5
            drawn.text(left / width, 1 - (top - 5) / height, panel.title, fontsize=size, weight="bold", va="baseline")
            if labelled:
                shown, step = [_visible(token) for token in tokens], side / len(tokens)
                axes.set_xticks(range(len(shown)), shown, rotation=90, rotation_mode="anchor", ha="right", va="center")
                axes.set_yticks(range(len(shown)), shown)
                axes.tick_params(pad=4, labelsize=min(11.0, step))
        yield drawn


def _picture(drawn: "Canvas", pixels: np.ndarray, left: float, top: float, width: float, height: float) -> "Axes":
    whole = drawn.bbox
    place = (left / whole.width, 1 - (top + height) / whole.height, width / whole.width, height / whole.height)
    axes = drawn.add_axes(place)
    axes.imshow(pixels, aspect="auto")
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color=RULE, alpha=0.33)
    return axes


def _scale(drawn: "Canvas", clear: str, full: str) -> None:
    """From clear to blue, with a word at either end, and which way queries and keys go."""
    whole = drawn.bbox
    left, ramp = 6 + 6.0 * len(clear), 90
    ends = ((0, clear, "left"), (left + ramp + 5, full, "left"), (whole.width, "queries down, keys across", "right"))
    for x, words, side in ends:
        drawn.text(x / whole.width, 7 / whole.height, words, fontsize=11, ha=side, va="baseline")
    _picture(drawn, colours(np.linspace(0, 1, 64)[None], 1.0), left, whole.height - 17, ramp, 11)


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
