"""One table, rendered as text for a terminal or as Markdown; and how a rendering gets into a document."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cosformer import terminal
from cosformer.output_file import write_output

__all__ = [
    "Table",
    "insert",
    "insert_into",
]


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column names its row. ``numeric``: the other columns are set to the right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: bool = True

    @property
    def text(self) -> str:
        """For a terminal."""
        body = terminal.table(self.header, self.rows)
        return f"{self.title}\n\n{body}" if self.title else body

    @property
    def markdown(self) -> str:
        body = terminal.markdown(self.header, self.rows, numeric=self.numeric)
        return f"{self.title}\n\n{body}" if self.title else body


def insert(text: str, name: str, block: str) -> str:
    """``text`` with ``block`` between the markers ``<!-- name:start -->`` and ``<!-- name:end -->``, within a line if
    the markers are."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"the document must hold the markers {start} and {end} once each")
    before, rest = text.split(start)
    inside, after = rest.split(end)
    around = "\n" if "\n" in inside else ""
    return f"{before}{start}{around}{block}{around}{end}{after}"


def insert_into(path: Path, name: str, block: str) -> None:
    """:func:`insert` in the file ``path``."""
    write_output(path, insert(path.read_text(encoding="utf-8"), name, block))
