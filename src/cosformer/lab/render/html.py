"""The few pieces of HTML that a report is made of. Text is escaped here and nowhere else."""

from collections.abc import Iterable, Sequence
from html import escape

from cosformer.lab.render.figure import Figure

_PROSE = 28  # letters from which the name of a row is a sentence and needs room


class Html(str):
    """Markup that is ready: everything else is text and gets escaped."""

    __slots__ = ()


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


def table(header: Sequence[object], rows: Sequence[Sequence[object]], caption: object = "") -> Html:
    """The first column names its row. A wide table scrolls in a box of its own; its caption does not scroll along."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [_row(row) for row in rows]
    whole = tag("table", tag("thead", head), tag("tbody", *body))
    label = str(caption or header[0]) or "table"
    box = tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=label)
    return Html(paragraph(caption, class_="caption") + box) if caption else box


def _row(row: Sequence[object]) -> Html:
    long = {"class_": "prose"} if len(str(row[0])) > _PROSE else {}
    cells = tag("th", row[0], scope="row", **long), *(tag("td", cell) for cell in row[1:])
    return tag("tr", *cells, class_="ours") if str(row[0]).lower() == "cosformer" else tag("tr", *cells)


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
