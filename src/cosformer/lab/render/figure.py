"""What every drawing function returns, and the one place that turns a matplotlib canvas into an SVG for light and dark pages."""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from cosformer.extras import require
from cosformer.lab.render.palette import DARK

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

STYLE = Path(__file__).with_name("figures.mplstyle")
LETTERS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


@dataclass(frozen=True)
class Figure:
    """``data``: the bytes of an SVG or PNG. ``alt``: what it shows, in words and numbers. ``caption``: what to look for."""

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
        path.write_bytes(self.data)
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
