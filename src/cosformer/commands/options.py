"""The parser of all commands, and options made from the fields of a dataclass."""

import argparse
import ast
import dataclasses
import inspect
import json
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from shutil import get_terminal_size
from textwrap import fill, wrap
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin

from cosformer.suggest import unknown

EXIT_USAGE = 2


class Help(argparse.HelpFormatter):
    """A usage line that names only what is required, and paragraphs that keep their line breaks and indentation."""

    def __init__(self, prog: str, width: int | None = None) -> None:
        super().__init__(prog, max_help_position=28, width=width or min(get_terminal_size().columns, 100) - 2)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        needed = [action for action in actions if action.required or not action.option_strings]
        text = super()._format_usage(usage, needed, [], prefix)
        return text if usage else text.replace(self._prog, f"{self._prog} [OPTIONS]", 1)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = []
        for line in text.split("\n"):
            start = line[: len(line) - len(line.lstrip())]
            lines.append(fill(line, width, subsequent_indent=start, break_on_hyphens=False))
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, with the nearest name that exists; abbreviated options are mistakes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": Help, "allow_abbrev": False} | settings)

    def add_subparsers(self, **settings: Any) -> Any:
        settings.setdefault("prog", self.prog)  # otherwise the usage line, with its [OPTIONS]
        return super().add_subparsers(**settings)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see `{self.prog} --help`\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # the parser of a subcommand is called here and not by parse_args: it alone knows its options
        found, rest = super().parse_known_args(args, namespace)
        options = [word for word in rest if word.startswith("-")]
        if options:
            self.error(str(unknown("option", options[0].partition("=")[0], self._option_string_actions)))
        if rest:
            self.error(f"unexpected argument {rest[0]!r}")
        return found, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            raise argparse.ArgumentError(action, f"{unknown('value', str(value), known)} (known: {', '.join(known)})")

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse itself hides that a disk is full


class _Switch(argparse.Action):
    """``--train.compile`` and ``--train.no-compile``."""

    def __init__(self, option_strings: list[str], dest: str, **settings: Any) -> None:
        start, dot, name = option_strings[0].removeprefix("--").rpartition(".")
        super().__init__([*option_strings, f"--{start}{dot}no-{name}"], dest, nargs=0, **settings)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, option_string == self.option_strings[0])


def add_fields(group: Any, values: Any, prefix: str = "", explained: Callable[[str], bool] = lambda name: True) -> None:
    """An option for each field of the dataclass instance ``values``: its help is the field's docstring, its default the
    value.

    Only the options that are given appear in the parsed namespace, as ``prefix`` + the field's name. Fields that are
    dataclasses are left out; of a dict each key has an option. Names that are not ``explained`` work, but --help omits
    them.
    """
    for field in dataclasses.fields(values):
        name, value = prefix + field.name, getattr(values, field.name)
        if dataclasses.is_dataclass(value):
            continue
        settings: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
        text = docstrings(type(values))[field.name].replace("%", "%%")
        if get_origin(field.type) is dict:
            add_key(group, f"{name}.KEY", text if explained(name) else argparse.SUPPRESS)
            for key in value:
                text = f"(default: {_short(value[key])})"
                add_key(group, f"{name}.{key}", text if explained(f"{name}.{key}") else argparse.SUPPRESS)
            continue
        settings["help"] = _with_default(text, value) if explained(name) else argparse.SUPPRESS
        types = set(get_args(field.type)) or {field.type}
        if get_origin(field.type) is Literal:
            settings["choices"] = get_args(field.type)
        elif bool in types:
            settings["action"] = _Switch
        else:
            (kind,) = types - {NoneType}
            settings |= {"type": _or_none(kind) if NoneType in types else kind, "metavar": _METAVARS[kind]}
        group.add_argument(option(name), **settings)


def add_key(group: Any, name: str, text: str = argparse.SUPPRESS) -> None:
    """An option for one key of a dict, e.g. ``data.options.path``."""
    group.add_argument(option(name), dest=name, type=free_value, metavar="VALUE", default=argparse.SUPPRESS, help=text)


_METAVARS = {int: "N", float: "X", str: "TEXT"}


def _with_default(text: str, value: Any) -> str:
    """``... (None: all)`` becomes ``... (default: all)``, or with a value ``... (default: 3)``."""
    text, _, meaning_of_none = text.partition(" (None: ")
    if value is None:
        return f"{text} (default: {meaning_of_none}" if meaning_of_none else text
    return f"{text} (default: {_short(value)})"


def _short(value: Any) -> str:
    return f"{value!s:.40}".replace("%", "%%") or "''"


def option(name: str) -> str:
    """``train.eval_every`` as it is typed: ``--train.eval-every``."""
    return f"--{name.replace('_', '-')}"


@cache
def docstrings(kind: type) -> dict[str, str]:
    """The docstrings of a dataclass's fields, read from its source: Python itself does not keep them."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: str(doc.value.value)
        for field, doc in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
    }


def _or_none(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return None if text == "None" else kind(text)

    read.__name__ = getattr(kind, "__name__", "value")  # argparse names it: invalid int value: 'many'
    return read


def free_value(text: str) -> Any:
    """The value of ``text`` read as JSON or as True, False or None; anything else stays a string."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except json.JSONDecodeError:
        return text
