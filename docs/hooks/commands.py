"""The page of the command line is made from the parsers themselves when the site is built."""

import argparse
from typing import Any

from cosformer.cli import COMMANDS, build_parser

MARKER = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of every page."""
    return markdown.replace(MARKER, command_pages()) if MARKER in markdown else markdown


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
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    return f"```text\n{parser.format_help().rstrip()}\n```"
