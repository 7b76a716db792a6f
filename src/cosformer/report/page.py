"""The page: sections one after the other, self-contained, written in one piece."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cosformer._version import __version__
from cosformer.report import measured, trained
from cosformer.report.html import Html, code, details, page, paragraph, tag, text, write_page
from cosformer.report.material import Material, gather
from cosformer.report.measurements import Results
from cosformer.report.summary import summary
from cosformer.report.table import Table

# heading -> what makes its content (nothing where nothing was run), and the command that would; a result that turns out broken
# there is named and left out, the rest stands
SECTIONS: dict[str, tuple[Callable[[Material], Html], str]] = {
    "Summary": (summary, ""),
    "Learning curves": (trained.curves, "cosformer train lm-stdlib-small"),
    "Runs": (trained.runs, "cosformer train lm-stdlib-small"),
    "Speed and memory": (measured.speed, "cosformer bench attention --json RESULTS/attention.json"),
    "Attention maps": (measured.attention_maps, "cosformer visualize RUN -o RUN/maps.npz"),
    "Exactness": (measured.exactness, "cosformer check --json > RESULTS/check.json"),
    "Environment and commands": (measured.environment, ""),
}


def write_report(
    out: Path, folders: Sequence[Path], results: Path | None, tables: Callable[[Results], list[Table]]
) -> list[str]:
    """Write the page about the runs in ``folders`` and the JSON files of the folder ``results`` to ``out``; returns what was skipped."""
    material = gather(folders, results, tables)
    write_page(out, build_page(material))
    return material.problems


def build_page(material: Material) -> str:
    """The whole page as text. ``material.problems`` also gets what its sections had to leave out."""
    made = {heading: make(material) for heading, (make, _) in SECTIONS.items()}
    sections = {heading: content for heading, content in made.items() if content}
    links = (tag("a", heading, href=f"#{_anchor(heading)}") for heading in sections)
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = [
        tag("h1", "cosFormer, measured"),
        paragraph("What was trained and measured here.", class_="lead"),
        tag("nav", *links, aria_label="Sections"),
    ]
    for heading, content in sections.items():
        body.append(tag("section", tag("h2", heading, id=_anchor(heading)), content))
        if heading == "Summary":
            body.append(_skipped(material.problems))
    body.append(_not_run([heading for heading in made if heading not in sections]))
    words = f"Made by cosformer {__version__} on {date} from files alone; nothing here was typed in by hand."
    body.append(tag("footer", words))
    return page("cosFormer, measured", body)


def _skipped(problems: Sequence[str]) -> Html:
    if not problems:
        return Html("")
    items = (tag("li", "skipped: ", text(problem)) for problem in problems)
    count = "One thing" if len(problems) == 1 else f"{len(problems)} things"
    fold = details(f"{count} could not be used; the rest of this page stands", tag("ul", *items))
    return tag("div", fold, class_="skipped")


def _not_run(headings: Sequence[str]) -> Html:
    """One folded list."""
    items = [tag("li", f"{heading}: ", code(SECTIONS[heading][1])) for heading in headings if SECTIONS[heading][1]]
    return (
        details(f"Not run: {len(items)} sections, and what would fill them", tag("ul", *items)) if items else Html("")
    )


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")
