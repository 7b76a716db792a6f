"""Parts of pages that follow from code are made when the site is built, so they are never stale.

`<!-- commands -->`: the help of every command. `<!-- recipes -->`: the table of recipes. `<!-- roofline -->` and
`<!-- triton resources -->`: what the GPU kernels are predicted to take, and what they need. The folder `study` is
studies/cosformer2022.
"""

import argparse
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from cosformer.cli import COMMANDS, build_parser
from cosformer.recipes import RECIPES, recipe
from tools import gpu_predictions
from tools import triton_resources as resources

STUDY = Path(__file__).parents[2] / "studies" / "cosformer2022"


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Called by mkdocs with the site's files: the study's pages and pictures stand beside the code that makes them."""
    for path in (STUDY / "results.md", STUDY / "protocol.md"):
        text = path.read_text(encoding="utf-8").replace("](../../docs/", "](../")
        files.append(File.generated(config, f"study/{path.name}", content=text))
    records = (STUDY / "results" / "runs.jsonl", STUDY / "results" / "ledger.json")
    for path in (*sorted((STUDY / "images").glob("*.svg")), *records):
        where = f"study/{path.parent.name}/{path.name}"
        files.append(File.generated(config, where, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of every page."""
    for marker, make in MADE.items():
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return markdown


def recipe_table() -> str:
    """Every recipe: what it trains, for how long, and what it leaves open."""
    lines = ["| recipe | task | data | host | updates | rows an update | note |", "|---|---|---|---|---:|---:|---|"]
    for name in RECIPES:
        found = recipe(name)
        what = f"| `{name}` | {found.task} | `{found.data.name}` | `{found.model.preset}` "
        lines.append(f"{what}| {found.train.steps:,} | {found.train.batch} | {found.note} |")
    return "\n".join(lines)


def command_pages() -> str:
    """A section with the help of every command and subcommand."""
    sections = []
    for name in COMMANDS:
        command = subparsers(build_parser(name))[name]
        sections.append(f"## {name}\n\n{block(command)}")
        sections += [f"### {name} {inner}\n\n{block(parser)}" for inner, parser in subparsers(command).items()]
    return "\n\n".join(sections)


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def block(parser: argparse.ArgumentParser) -> str:
    kind: Any = parser.formatter_class
    parser.formatter_class = lambda prog: kind(prog, width=100)
    return f"```text\n{parser.format_help().rstrip()}\n```"


MADE = {
    "<!-- commands -->": command_pages,
    "<!-- recipes -->": recipe_table,
    "<!-- roofline -->": gpu_predictions.predictions,
    "<!-- triton resources -->": lambda: resources.markdown(Path("docs/how-to/gpu_kernels.json")),
}
