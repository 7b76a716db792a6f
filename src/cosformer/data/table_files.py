"""Reads CSV, TSV, JSON lines, parquet and arrow row by row; each value knows where it was found."""

import csv
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from cosformer.data.own_files import LONGEST_LINE, OwnFile, checked_lines
from cosformer.extras import require

ENDINGS = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow")

_BESIDE_ARROW = ("dataset_dict.json", "dataset_info.json", "state.json")


@dataclass(frozen=True)
class TableFile:
    """One file: its columns, and its rows as (number, values by column). ``unit`` is what the number counts: lines or
    rows. ``class_names``: of a column whose integers stand for names, as `datasets` stores them."""

    name: str
    columns: list[str]
    rows: Iterator[tuple[int, dict[str, Any]]]
    unit: str = "line"
    class_names: dict[str, list[str]] = field(default_factory=dict)

    def place(self, number: int) -> str:
        return f"{self.name}, {self.unit} {number}"


def is_table(name: str) -> bool:
    """Whether a file of a folder holds rows; what `datasets` writes beside its arrow files does not."""
    return name.lower().endswith(ENDINGS) and PurePosixPath(name).name not in _BESIDE_ARROW


def read_tables(
    files: Iterable[OwnFile], columns: Iterable[str], reading: dict[str, Any]
) -> Iterator[tuple[TableFile, int, dict[str, Any]]]:
    """(file, number, values) of every row of all tables; each must have these ``columns``, and rows."""
    for file in files:
        table, number = open_table(file, **reading), None
        for name in columns:
            if name not in table.columns:
                raise ValueError(
                    f"{table.name} has no column {name!r}, which the first file has; it has {', '.join(table.columns)}"
                )
        for number, values in table.rows:
            yield table, number, values
        if number is None:
            raise ValueError(f"{table.name} holds a header and no rows")


def open_table(file: OwnFile, *, delimiter: str | None, quotes: bool, encoding: str, errors: str) -> TableFile:
    """Read the header (or the first row) of ``file``; its rows are read as they are asked for."""
    if file.ending in (".parquet", ".arrow"):
        return _arrow(file)
    lines = checked_lines(file, encoding, errors)
    if file.ending in (".jsonl", ".ndjson", ".json"):
        return _json(file, lines)
    return _csv(file, lines, delimiter or ("\t" if file.ending in (".tsv", ".tab") else None), quotes)


def delimiter_of(header: str) -> str:
    """What separates the cells of a CSV file, guessed from its first line."""
    return ";" if header.count(";") > header.count(",") else ","


def _csv(file: OwnFile, lines: Iterator[tuple[int, str]], delimiter: str | None, quotes: bool) -> TableFile:
    first = next(lines, None)
    if first is None or not first[1].strip():
        raise ValueError(f"{file.shown} is empty" if first is None else f"{file.shown}, line 1: no header")
    delimiter = delimiter or delimiter_of(first[1])
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(
        (line for _, line in itertools.chain([first], lines)),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
        strict=True,
    )
    header = [name.strip() for name in _next_row(file, reader) or []]
    doubled = next((name for name in header if header.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(f"{file.shown}, line 1: the column {doubled!r} appears more than once; rename one of them")

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        while True:
            number = reader.line_num + 1  # a quoted cell may span lines: the row begins here
            values = _next_row(file, reader)
            if values is None:
                return
            if not values:  # a blank line
                continue
            if len(values) != len(header):
                raise ValueError(
                    f"{file.shown}, line {number}: {len(values)} columns, not the {len(header)} of the header; quote "
                    f"cells that contain {delimiter!r}, or set the option delimiter (quotes=False where quotation "
                    "marks are text)"
                )
            yield number, dict(zip(header, values, strict=True))

    return TableFile(file.shown, header, rows())


def _next_row(file: OwnFile, reader: Any) -> list[str] | None:
    number = reader.line_num + 1
    try:
        return next(reader, None)
    except csv.Error as error:
        raise ValueError(
            f"{file.shown}, line {number}: not readable as CSV ({error}); if quotation marks are part of the text, set "
            "quotes=False"
        ) from None


def _json(file: OwnFile, lines: Iterator[tuple[int, str]]) -> TableFile:
    def objects() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in lines:
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                hint = "; one object a line is read, not one list over many lines" if number == 1 else ""
                raise ValueError(f"{file.shown}, line {number}: not JSON ({error}){hint}") from None
            if not isinstance(value, dict):
                raise ValueError(f"{file.shown}, line {number}: expected a JSON object, got {type(value).__name__}")
            yield number, value

    rows = objects()
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{file.shown} is empty")
    return TableFile(file.shown, list(first[1]), itertools.chain([first], rows))


def _arrow(file: OwnFile) -> TableFile:
    """Through Hugging Face's `datasets`, as a stream: nothing is copied into its cache."""
    datasets = require("data", "datasets")
    kind = file.ending.removeprefix(".")
    try:
        found = datasets.load_dataset(kind, data_files=str(file.path), split="train", streaming=True)
        features = found.features or {}
        rows = ((number, row) for number, row in enumerate(found, start=1))
        first = next(rows, None)
    except Exception as error:  # datasets raises its own kinds, and those of pyarrow
        raise ValueError(f"{file.shown} cannot be read as {kind}: {str(error).splitlines()[0]}") from error
    if first is None:
        raise ValueError(f"{file.shown} holds no rows")
    names = {name: list(f.names) for name, f in features.items() if isinstance(f, datasets.ClassLabel)}
    return TableFile(file.shown, list(features) or list(first[1]), itertools.chain([first], rows), "row", names)
