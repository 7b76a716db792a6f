"""Where rows go: as CSV, JSON lines or parquet."""

import csv
import io
import json
from collections.abc import Sequence
from typing import IO, Any, Protocol

from cosformer.extras import require
from cosformer.prediction.rows import DELIMITERS


class RowWriter(Protocol):
    """Takes rows, each with a value for every column, some at a time."""

    def write(self, rows: Sequence[dict[str, Any]]) -> None: ...

    def close(self) -> None: ...


def row_writer(form: str, file: IO[bytes], columns: dict[str, type], schema: Any = None) -> RowWriter:
    """Writes rows of ``columns`` (name -> type) to ``file``; ``schema``: pyarrow's, for typed columns."""
    if form == "parquet":
        return _Parquet(file, columns, schema)
    return _JsonLines(file) if form == "jsonl" else _Delimited(file, list(columns), DELIMITERS[form])


class _Delimited:
    def __init__(self, file: IO[bytes], columns: list[str], delimiter: str) -> None:
        self.text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        self.columns = columns
        self.writer = csv.writer(self.text, delimiter=delimiter, lineterminator="\n")
        self.writer.writerow(columns)

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self.writer.writerows([_cell(row.get(column)) for column in self.columns] for row in rows)

    def close(self) -> None:
        self.text.detach()  # flushes, and leaves the stream open


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


class _JsonLines:
    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self.file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8"))

    def close(self) -> None:
        pass


class _Parquet:
    def __init__(self, file: IO[bytes], columns: dict[str, type], schema: Any) -> None:
        parquet, self.arrow = require("data", "pyarrow.parquet"), require("data", "pyarrow")
        kinds = {float: self.arrow.float64(), int: self.arrow.int64(), str: self.arrow.string()}
        kinds |= {list: self.arrow.list_(self.arrow.string())}
        known = {} if schema is None else {field.name: field.type for field in schema}
        fields = [(name, known.get(name, kinds[kind])) for name, kind in columns.items()]
        self.schema = self.arrow.schema(fields)
        self.writer = parquet.ParquetWriter(file, self.schema)

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        try:
            batch = self.arrow.RecordBatch.from_pylist(list(rows), schema=self.schema)
        except (self.arrow.ArrowInvalid, self.arrow.ArrowTypeError) as error:
            raise ValueError(f"a value does not fit its column in parquet: {error}; write .jsonl instead") from error
        self.writer.write_batch(batch)

    def close(self) -> None:
        self.writer.close()
