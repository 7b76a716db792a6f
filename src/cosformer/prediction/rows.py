"""Rows of a table in any of the usual formats; an unreadable row is reported and the rest continue."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from cosformer.data import arrays, fasta
from cosformer.data.columns import USUAL, choose, named
from cosformer.data.own_files import own_files
from cosformer.data.series import unlabelled
from cosformer.data.table_files import delimiter_of
from cosformer.data.table_files import open_table as open_own_table
from cosformer.extras import require
from cosformer.output_file import STANDARD

# ending -> form that is written; all of them, and those below, are read
WRITTEN = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
FORMS = WRITTEN | {".tab": "tsv", ".json": "jsonl", ".arrow": "arrow", ".txt": "txt"}
FORMS |= dict.fromkeys(fasta.ENDINGS, "fasta") | dict.fromkeys(arrays.ENDINGS, "arrays")
_COMPRESSED = (".gz", ".xz", ".bz2")
DELIMITERS = {"csv": ",", "tsv": "\t"}  # of what is written


@dataclass(frozen=True)
class Row:
    """Row ``number``, counted from 1 without a header: its values by column, or the ``problem`` that it could not be
    read for. ``input``: what the model gets, where no column holds it (an array)."""

    number: int
    values: dict[str, Any]
    problem: str = ""
    input: Any = None


@dataclass(frozen=True)
class Table:
    """The rows of a source, read as they are asked for. ``schema``: pyarrow's, where the source has types."""

    name: str
    columns: list[str]
    rows: Iterator[Row]
    schema: Any = None


def form_of(path: str, asked: str | None, standard: str, *, written: bool = False) -> str:
    """The format of ``path``: ``asked``, or by its ending; ``standard`` is that of standard input or output."""
    if asked is not None:
        return asked
    if path == STANDARD:
        return standard
    forms = WRITTEN if written else FORMS
    endings = [ending.lower() for ending in Path(path).suffixes]
    if not written and endings and endings[-1] in _COMPRESSED:
        endings.pop()
    if not endings or endings[-1] not in forms:
        way = "--writes" if written else "--reads"
        raise ValueError(f"{path}: its ending says no form; wanted {', '.join(forms)}, or {way}")
    return forms[endings[-1]]


@contextmanager
def open_table(
    path: str, form: str, series: Mapping[str, Any] | None = None, reading: Mapping[str, Any] | None = None
) -> Iterator[Table]:
    """The table in ``path``; ``-`` is standard input. ``series``: the columns of readings, as the options of the set
    'series'; the rows that are one series then become one row. ``reading``: the options delimiter, quotes, encoding and
    errors of the set 'table', where they are set."""
    name = "standard input" if path == STANDARD else path
    if series is not None and form != "arrays":
        yield _series(path, name, series)
        return
    if form in _WHOLE:
        if path == STANDARD:
            raise ValueError(f"{form} cannot be read from standard input; give a file")
        yield _WHOLE[form](path, name)
        return
    reading = reading or {}
    # bytes that cannot be decoded become lone surrogates, by which a bad row is known; "" leaves line ends in quoted
    # cells alone
    encoding, errors = reading.get("encoding", "utf-8"), reading.get("errors", "strict")
    settings: dict[str, Any] = {"encoding": "utf-8-sig" if encoding == "utf-8" else encoding, "newline": ""}
    settings |= {"errors": "surrogateescape" if errors == "strict" else errors}
    if path == STANDARD:
        yield _READERS[form](io.TextIOWrapper(sys.stdin.buffer, **settings), name, form, reading)
    elif path.lower().endswith(_COMPRESSED):
        files = own_files(path)  # held: when the generator goes, its file is closed
        with io.TextIOWrapper(next(files).stream, **settings) as file:  # pyright: ignore[reportArgumentType]
            yield _READERS[form](file, name, form, reading)
    else:
        with open(path, **settings) as file:
            yield _READERS[form](file, name, form, reading)


def _delimited(file: IO[str], name: str, form: str, reading: Mapping[str, Any]) -> Table:
    csv.field_size_limit(sys.maxsize)
    first = next(file, "")
    delimiter = reading.get("delimiter") or ("\t" if form == "tsv" else delimiter_of(first))
    quoting = csv.QUOTE_MINIMAL if reading.get("quotes", True) else csv.QUOTE_NONE
    reader = csv.reader(chain([first], file), delimiter=delimiter, quoting=quoting)
    header = [column.strip() for column in next(reader, [])]
    if not header:
        raise ValueError(f"{name} is empty: its first line names the columns")
    doubled = next((column for column in header if header.count(column) > 1), None)
    if doubled is not None:
        raise ValueError(f"{name}: the column {doubled!r} appears more than once; rename one of them")

    def rows() -> Iterator[Row]:
        cells = (row for row in reader if row)  # a blank line is no row
        for number, row in enumerate(cells, start=1):
            wrong = (
                f"{len(row)} cells, and the header has {len(header)}"
                if len(row) != len(header)
                else encoding_problem(row)
            )
            yield Row(number, dict(zip(header, row, strict=False)), wrong)

    return Table(name, header, rows())


def _json_lines(file: IO[str], name: str, form: str, reading: Mapping[str, Any]) -> Table:
    def rows() -> Iterator[Row]:
        for number, line in enumerate((line for line in file if line.strip()), start=1):
            try:
                values = json.loads(line)
            except ValueError as error:
                yield Row(number, {}, f"not JSON ({error})")
                continue
            if isinstance(values, dict):
                yield Row(number, values, encoding_problem([line]))
            else:
                yield Row(number, {}, f"expected a JSON object, got {line.strip()[:40]}")

    found = rows()
    # the first row that can be read has the columns
    before = []
    for row in found:
        before.append(row)
        if row.values:
            break
    columns = list(before[-1].values) if before else []
    return Table(name, columns, chain(before, found))


def _lines(file: IO[str], name: str, form: str, reading: Mapping[str, Any]) -> Table:
    rows = ((number, line.rstrip("\r\n")) for number, line in enumerate(file, start=1))
    return Table(name, ["text"], (Row(number, {"text": line}, encoding_problem([line])) for number, line in rows))


def _parquet(path: str, name: str) -> Table:
    parquet = require("data", "pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
    except FileNotFoundError:
        raise
    except Exception as error:  # pyarrow has kinds of its own
        raise ValueError(f"{name} cannot be read as parquet: {str(error).splitlines()[0]}") from error

    def rows() -> Iterator[Row]:
        values = (row for batch in file.iter_batches(batch_size=4096) for row in batch.to_pylist())
        return (Row(number, row) for number, row in enumerate(values, start=1))

    return Table(name, list(file.schema_arrow.names), rows(), file.schema_arrow)


def _arrow(path: str, name: str) -> Table:
    """Through Hugging Face's `datasets`, as in training."""
    files = own_files(path)
    table = open_own_table(next(files), delimiter=None, quotes=True, encoding="utf-8", errors="strict")
    return Table(name, table.columns, (Row(number, values) for number, values in table.rows))


def _fasta(path: str, name: str) -> Table:
    rows = (
        Row(number, {"id": record.header, "sequence": record.letters})
        for number, record in enumerate((r for file in own_files(path) for r in fasta.records(file)), start=1)
    )
    return Table(name, ["id", "sequence"], rows)


def _arrays(path: str, name: str) -> Table:
    found = (row for file in arrays.read_arrays(path, check=False) for row in file.rows)
    rows = (Row(number, {"row": str(number)}, arrays.problem(row), row) for number, row in enumerate(found, start=1))
    return Table(name, ["row"], rows)


def _series(path: str, name: str, options: Mapping[str, Any]) -> Table:
    if path == STANDARD:
        raise ValueError("series cannot be read from standard input; give a file")
    column = str(options.get("series") or "series")
    rows = (Row(i, {column: row.group}, input=row.text) for i, row in enumerate(unlabelled(path, options), start=1))
    return Table(name, [column], rows)


_WHOLE = {"parquet": _parquet, "arrow": _arrow, "fasta": _fasta, "arrays": _arrays}
_READERS = {"csv": _delimited, "tsv": _delimited, "jsonl": _json_lines, "txt": _lines}


def encoding_problem(texts: Sequence[str]) -> str:
    """What is wrong with texts that cannot be written as UTF-8; empty: nothing."""
    try:
        for text in texts:
            text.encode("utf-8")
    except UnicodeEncodeError:
        return "not UTF-8"
    return ""


def text_column(table: Table, asked: str | None) -> str:
    """The column that holds the texts: the one ``asked`` for, else one of a usual name, else the only one."""
    if asked is not None:
        return named(table.name, table.columns, asked)
    only = table.columns[0] if len(table.columns) == 1 else None
    usual = {"text": (*USUAL["class"]["text"], "sequence")}
    found = choose(table.columns, {}, usual).get("text", only)
    if found is None:
        raise ValueError(
            f"{table.name}: which column holds the texts? It has {', '.join(table.columns)}; say --text "
            f"{table.columns[0]}"
            if table.columns
            else f"{table.name}: no row can be read"
        )
    return found
