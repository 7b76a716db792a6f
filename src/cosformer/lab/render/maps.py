"""A page with the attention maps of one model on one text."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cosformer.lab.render.document import document, write_page
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.html import code, figure, paragraph, tag


def write_maps(out: Path, title: str, tokens: Sequence[str], figures: Mapping[str, Figure]) -> None:
    """``figures``: heading -> the maps below it. ``tokens``: what the model read."""
    lead = "Where each head looks: queries down, keys across, blue for positive weights, orange for negative, clear for zero."
    read = paragraph(f"{len(tokens)} tokens: ", code("|".join(tokens)), class_="source")
    sections = [
        tag("section", tag("h2", heading), tag("div", figure(picture), class_="wide"))
        for heading, picture in figures.items()
    ]
    write_page(
        out,
        document(
            "Attention maps",
            [tag("h1", "Attention maps"), paragraph(lead, class_="lead"), paragraph(title), read, *sections],
        ),
    )
