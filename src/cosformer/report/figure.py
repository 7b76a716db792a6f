"""What every drawing function returns, the one place that turns a matplotlib canvas into an SVG for light and dark
pages, and the one place for colours: told apart by every kind of eye, and at least 3:1 against white and against a dark
page."""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from cosformer.extras import require
from cosformer.output_file import write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = [
    "INK",
    "RULE",
    "Figure",
    "canvas",
    "styles",
    "svg",
]

STYLE = Path(__file__).with_name("figures.mplstyle")
LETTERS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"

# after Okabe and Ito: those of their colours that stand out on white as well as on black, some a little darker or
# lighter
_COLOURS = ("#1a7fc1", "#d55e00", "#009e73", "#c26a9a", "#8a6fd1", "#a67c00", "#7d8590", "#2a93a8")
# a second sign beside the colour: dashes of a line
_DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3), (4, 2), (1, 2), (12, 4), (6, 2, 1, 2))

_GREY = 6

# attentions that are often seen together always look the same
_FIXED = {"cosformer": 0, "softmax": 1, "sdpa": 1, "relu": 2, "leaky_relu": 3, "authors' code": 3, "identity": 4}

INK, RULE = "#59616c", "#8b949e"  # text; thin lines, which do for either page. figures.mplstyle has both, too
DARK = {INK: "#a9b2bd"}  # a colour of a light page -> on a dark one
POSITIVE, NEGATIVE = (26, 127, 193), (213, 94, 0)  # ends of the heat maps' scale, red, green, blue


@dataclass(frozen=True)
class Figure:
    """``data``: the bytes of an SVG or PNG. ``alt``: its content in words. ``caption``: what to look for."""

    name: str
    data: bytes
    kind: str  # "svg" or "png"
    alt: str
    caption: str

    @property
    def uri(self) -> str:
        """The picture as a data: address, for a page that needs no other file."""
        mime = {"svg": "image/svg+xml", "png": "image/png"}[self.kind]
        return f"data:{mime};base64,{base64.b64encode(self.data).decode()}"

    def save(self, folder: Path) -> Path:
        """Write it as ``folder/name.kind``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.{self.kind}"
        write_output(path, self.data)
        return path


@contextmanager
def canvas(width: float, height: float) -> "Iterator[Canvas]":
    """An empty matplotlib figure of that many pixels in the style of all; draw and save it inside the ``with``."""
    matplotlib = require("plot", "matplotlib")
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(fname=STYLE):  # over matplotlib's defaults: a reader's own settings change no picture
        yield Canvas(figsize=(width / 72, height / 72))


def svg(drawn: "Canvas", alt: str, dark: Mapping[str, str] = DARK) -> bytes:
    """The SVG of a canvas. ``alt`` is for screen readers. ``dark``: the colours that change on a dark page."""
    out = BytesIO()
    drawn.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = "\n".join(line.rstrip() for line in out.getvalue().decode().splitlines())
    text = text.replace("font-weight: 700", "font-weight: 600")  # which the page's letters have, and DejaVu has not
    head, _, body = text[text.index("<svg") :].partition(">")
    # matplotlib writes colours into style attributes, which only !important overrides
    changes = "".join(
        f'[style*="{what}: {light}"]{{{what}:{colour}!important}}'
        for light, colour in dark.items()
        for what in ("fill", "stroke")
    )
    style = f"text{{font-family:{LETTERS}!important}}@media(prefers-color-scheme:dark){{{changes}}}"
    head = head.replace('pt"', '"')  # of the width and the height: pixels, as the style's sizes are
    words = escape(alt)
    return f'{head} role="img" aria-label="{words}">\n<title>{words}</title>\n<style>{style}</style>{body}\n'.encode()


def styles(names: list[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(colour, dashes) for each of ``names``: the same name looks the same in every figure where it has a fixed look.
    More names than looks: all that have none of their own are grey, so that no two seem related; their labels tell them
    apart."""
    used = {_FIXED[n] for n in names if n in _FIXED}
    free = [i for i in range(len(_COLOURS)) if i not in used]
    others = [n for n in names if n not in _FIXED]
    given = dict(zip(others, free if len(others) <= len(free) else [_GREY] * len(others), strict=False))
    return {name: (_COLOURS[i], _DASHES[i]) for name in names for i in [_FIXED.get(name, given.get(name, _GREY))]}
