"""Plain output: aligned tables, and colour, a status line and progress bars where a person is looking."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from cosformer.extras import require

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}
_CLEAR_LINE = "\r\x1b[K"


def has_colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that shows colour and the user did not forbid it (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """``text`` in ``colour`` (green, red, yellow, bold, dim) where ``stream``, by default stdout, has colour."""
    if not has_colour(stream or sys.stdout):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under a header, columns aligned: the first to the left, the others to the right."""
    widths = [max(_width(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        gaps = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        return "  ".join(
            [row[0] + gaps[0], *(gap + cell for gap, cell in zip(gaps[1:], row[1:], strict=True))]
        ).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: bool = True) -> str:
    """The same in Markdown; ``numeric``: all columns but the first are set to the right."""
    rule = ["---", *["---:" if numeric else "---"] * (len(header) - 1)]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (escaped[0], rule, *escaped[1:]))


def _width(text: str) -> int:
    """Letters that are seen: colour has none."""
    return len(re.sub(r"\x1b\[[0-9;]*m", "", text))


def number(value: float) -> str:
    """A score: four digits behind the point, and no more digits than it can mean."""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"


def status(text: str) -> None:
    """Show what is going on, on one line of stderr that the next call overwrites; nothing where that is no terminal."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size()[0]
        sys.stderr.write(_CLEAR_LINE + text[: max(width - 1, 0)])
        sys.stderr.flush()


def progress_bar(label: str, total: int | None, unit: str = "rows", **options: Any) -> Any:
    """``with progress_bar("listops", total) as bar: bar.update(n)``: a tqdm bar on stderr, gone when it ends."""
    tqdm = require("data", "tqdm").tqdm
    # disable=None: tqdm itself looks whether stderr is a terminal
    return tqdm(desc=label, total=total, unit=f" {unit}", disable=None, leave=False, dynamic_ncols=True, **options)


def training_bar(title: str, total: int, done: int) -> Any:
    """A tqdm bar with the remaining time on stderr; None where that is no terminal."""
    if not sys.stderr.isatty():
        return None
    text = "{desc} {bar} {n_fmt}/{total_fmt}{postfix}, {remaining} left"
    return require("train", "tqdm").tqdm(desc=title, total=total, initial=done, dynamic_ncols=True, bar_format=text)
