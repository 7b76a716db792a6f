"""The few pieces of HTML that a report is made of. Text is escaped here and nowhere else."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from cosformer.output_file import write_output
from cosformer.report.figure import Figure

CSS, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
_PROSE = 28  # letters from which the name of a row is a sentence and needs room


class Html(str):
    """Markup that is ready: everything else is text and gets escaped."""

    __slots__ = ()


class Cell(str):
    """The text of a cell, and the number that it is sorted by (None: by the text)."""

    value: float | None

    def __new__(cls, content: str, value: float | None = None) -> "Cell":
        made = super().__new__(cls, content)
        made.value = value
        return made


def text(content: object) -> Html:
    return content if isinstance(content, Html) else Html(escape(str(content)))


def join(parts: Iterable[object]) -> Html:
    return Html("\n".join(map(text, parts)))


def tag(name: str, *content: object, **attributes: str) -> Html:
    """``<name …>content</name>``; ``class_`` is class."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{given}>{''.join(map(text, content))}</{name}>")


def paragraph(*content: object, class_: str = "") -> Html:
    return tag("p", *content, class_=class_) if class_ else tag("p", *content)


def table(header: Sequence[object], rows: Sequence[Sequence[object]], caption: object = "", label: str = "") -> Html:
    """The first column names its row. A wide table scrolls in a box of its own; its caption does not scroll along."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [_row(row) for row in rows]
    whole = tag("table", tag("thead", head), tag("tbody", *body))
    label = label or str(caption or header[0]) or "table"
    box = tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=label)
    return Html(paragraph(caption, class_="caption") + box) if caption else box


def sortable(header: Sequence[object], rows: Sequence[Sequence[object]]) -> Html:
    """A :func:`table` whose headings sort it. Without a script it stays as it is."""
    plain = table([tag("button", cell, type="button") for cell in header], rows, label=str(header[0]))
    return Html(plain.replace("<table>", '<table class="sortable">', 1))


def _row(row: Sequence[object]) -> Html:
    long = {"class_": "prose"} if len(str(row[0])) > _PROSE else {}
    cells = tag("th", row[0], scope="row", **long), *(tag("td", cell, **_value(cell)) for cell in row[1:])
    return tag("tr", *cells, class_="ours") if str(row[0]).lower() == "cosformer" else tag("tr", *cells)


def _value(cell: object) -> dict[str, str]:
    return {"data_value": f"{cell.value:.10g}"} if isinstance(cell, Cell) and cell.value is not None else {}


def figure(picture: Figure) -> Html:
    image = Html(f'<img src="{picture.uri}" alt="{escape(picture.alt)}" loading="eager">')
    return tag("figure", image, tag("figcaption", picture.caption))


def gallery(pictures: Sequence[Figure]) -> Html:
    """Side by side where there is room, one below the other where there is not."""
    return tag("div", *map(figure, pictures), class_="gallery") if pictures else Html("")


def details(summary: object, *content: object) -> Html:
    return tag("details", tag("summary", summary), *content)


def code(content: str) -> Html:
    return tag("code", content)


def page(title: str, body: Sequence[Html]) -> str:
    """A whole page that asks for no other file."""
    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark">'),
            Html('<link rel="icon" href="data:,">'),  # or a browser asks for one
            tag("title", title),
            tag("style", Html(CSS.read_text(encoding="utf-8"))),
        ]
    )
    inside = join(body)
    script = tag("script", Html(SCRIPT.read_text(encoding="utf-8"))) if 'class="sortable"' in inside else ""
    content = f"<head>\n{head}\n</head>\n<body>\n<main>\n{inside}\n</main>\n{script}</body>"
    return f'<!doctype html>\n<html lang="en">\n{content}\n</html>\n'


def write_page(out: Path, content: str) -> None:
    """In one step: whoever has the page open never sees half of it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_output(out, content)
