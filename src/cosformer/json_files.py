"""JSON files: an object, or an object a line. What is damaged is said in a sentence, and does not spoil the rest."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cosformer.output_file import write_output


def loads(text: str) -> Any:
    """``json.loads``, for which a text of a thousand brackets is an error like any other: a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(path: Path, problems: list[str], *, required: bool) -> dict[str, Any] | None:
    """The object in ``path``; None if there is no such file, which is a problem if it is ``required``."""
    try:
        value = loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            problems.append(f"{path} is missing")
        return None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, no JSON
        problems.append(f"{path} cannot be read: {error}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path} holds no JSON object")
        return None
    return value


def read_lines(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    """``(line number, object)`` of every line that can be read, and what is wrong with the others or with the file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return [], [f"{path} is missing" if isinstance(error, FileNotFoundError) else f"{path}: {error}"]
    found, problems = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            found.append((number, value))
        else:
            problems.append(f"{path} line {number} cannot be read: {line[:60]}")
    return found, problems


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    write_output(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
