"""The page: sections one after the other, self-contained, written in one piece."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from cosformer._version import __version__
from cosformer.lab.render import measured, trained
from cosformer.lab.render.html import Html, page, paragraph, tag, text, write_page
from cosformer.lab.render.material import Material, gather

# heading -> what makes its content; a result that turns out broken there is named and left out, the rest stands
SECTIONS = {
    "Summary": measured.summary,
    "Exactness": measured.exactness,
    "Speed and memory": measured.speed,
    "Language modelling": trained.language_modelling,
    "Masked language modelling": trained.masked_language_modelling,
    "Fine-tuning": trained.fine_tuning,
    "Long-Range Arena": trained.long_range_arena,
    "Loss curves": trained.curves,
    "Attention maps": measured.attention_maps,
    "Claims": measured.claims,
    "Environment and commands": measured.environment,
}
HEADINGS = tuple(SECTIONS)


def write_report(out: Path, runs: Sequence[Path], results: Path | None = None) -> list[str]:
    """Write the page about ``runs`` and the JSON files of the folder ``results`` to ``out``; returns what was skipped."""
    material = gather(runs, results)
    write_page(out, build_page(material))
    return material.problems


def build_page(material: Material) -> str:
    """The whole page as text. ``material.problems`` also gets what its sections had to leave out."""
    sections = {heading: make(material) for heading, make in SECTIONS.items()}
    links = (tag("a", heading, href=f"#{_anchor(heading)}") for heading in sections)
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = [
        tag("h1", "cosFormer, measured"),
        paragraph(
            "Linear attention by ReLU and a cosine re-weighting (Qin et al., ICLR 2022): what it does on this machine,"
            " beside what the paper reports. What was not run says so.",
            class_="lead",
        ),
        tag("nav", *links, aria_label="Sections"),
        _skipped(material.problems),
        *(tag("section", tag("h2", heading, id=_anchor(heading)), made) for heading, made in sections.items()),
        tag(
            "footer", f"Made by cosformer {__version__} on {date} from files alone; nothing here was typed in by hand."
        ),
    ]
    return page("cosFormer, measured", body)


def _skipped(problems: Sequence[str]) -> Html:
    if not problems:
        return Html("")
    items = (tag("li", "skipped: ", text(problem)) for problem in problems)
    return tag(
        "div",
        paragraph("Not everything could be used; the rest of this page stands."),
        tag("ul", *items),
        class_="skipped",
    )


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")
