"""Parts of pages that follow from code or results are made when the site is built, so they are never stale.

`<!-- commands -->`: the help of every command. `<!-- recipes -->`: the table of recipes. `<!-- measured NAME -->`: the rows of
docs/results/NAME.json.
"""

import argparse
import re
from pathlib import Path
from typing import Any

from cosformer.bench import results, table
from cosformer.cli import COMMANDS, build_parser
from cosformer.recipes import RECIPES, recipe

RESULTS = Path(__file__).parents[1] / "results"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of every page."""
    for marker, make in (("<!-- commands -->", command_pages), ("<!-- recipes -->", recipe_table)):
        if marker in markdown:
            markdown = markdown.replace(marker, make())
    return re.sub(r"<!-- measured ([\w-]+) -->", lambda match: measured(match[1]), markdown)


def measured(name: str) -> str:
    """The rows of a result file as a table, with what they should reach where something was set."""
    found = results.read(RESULTS / f"{name}.json")
    rows = results.rows_of(found)
    if any(row.id.startswith("zoo/") for row in rows):
        return table.as_markdown(found)
    body = []
    for row in rows:
        spread = "" if row.low is None or row.low == row.high else f" ({row.low:.3g} to {row.high:.3g})"
        value = "not run" if row.value is None else f"{row.value:,.3g}{spread} {row.unit}"
        goal = "" if row.goal is None else f"{'at least' if row.better == 'higher' else 'at most'} {row.goal:g}"
        body.append([row.what, value, goal])
    return table.as_markdown(found, [table.Table("", ["", "measured", "wanted"], body)])


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
