"""A file of rows in, a file of the same rows with a model's answers out, in order and a window at a time."""

import sys
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from cosformer.output_file import open_output
from cosformer.prediction.model import Predictor
from cosformer.prediction.output import row_writer
from cosformer.prediction.readers import Bad, Text
from cosformer.prediction.rows import Row, Table, encoding_problem, form_of, open_table, text_column
from cosformer.terminal import progress_bar

_AT_ONCE = 1024  # rows handed to the writer


def predict_file(
    predictor: Predictor,
    source: str,
    out: str,
    *,
    text: str | None = None,
    second: str | None = None,
    skip_bad: bool = False,
    only: bool = False,
    reads: str | None = None,
    writes: str | None = None,
) -> tuple[int, int]:
    """Answer every row of ``source`` into ``out``; returns how many rows there were, and how many of them were bad.

    ``text``, ``second``: the columns of the texts. ``only``: without the columns of the source. A bad row raises
    ValueError with its number and leaves no file; with ``skip_bad`` it is said on stderr and its row has no answer.
    ``reads``, ``writes``: forms, where the endings of the names do not say them; standard input is read as JSON lines,
    and written to what was read.
    """
    form = form_of(source, reads, "jsonl")
    out_form = form_of(out, writes, form if form in ("csv", "tsv") else "jsonl", written=True)
    with open_table(source, form, predictor.read.series, predictor.read.reading) as table:
        if second is None and predictor.takes_pairs and predictor.read.second_column in table.columns:
            second = predictor.read.second_column
        if second is not None:
            second = text_column(table, second)
        elif predictor.takes_pairs:
            raise ValueError(f"{predictor.source} reads two texts; name the column of the other one with --second")
        trained = predictor.read.text_column
        column = None
        if not predictor.takes_arrays:
            column = text_column(table, trained if text is None and trained in table.columns else text)
        elif text is not None:
            raise ValueError(f"{predictor.source} reads arrays, not texts; leave out --text")
        columns: dict[str, type] = {} if only else dict.fromkeys(table.columns, str)
        taken = sorted(columns.keys() & predictor.columns.keys())
        if taken:
            raise ValueError(
                f"{table.name} has a column {taken[0]!r} already; rename it, or leave the table's columns out (--only)"
            )
        bad = _BadRows(table, skip_bad)
        # a column that the header lacks has a place among JSON lines alone
        known = None if only or out_form == "jsonl" else columns.keys()
        rows = _read(table, column, second, known)
        with open_output(out) as file, progress_bar("predict", None) as bar:
            writer = row_writer(out_form, file, columns | predictor.columns, table.schema)
            pending: list[dict[str, Any]] = []
            count = 0
            for row, answer in _answered(predictor, rows):
                if isinstance(answer, Bad):
                    bad(row, answer.problem)
                    answer = dict.fromkeys(predictor.columns)
                pending.append(
                    answer if only else {name: row.values.get(name) for name in columns} | row.values | answer
                )
                count += 1
                if len(pending) == _AT_ONCE:
                    writer.write(pending)
                    bar.update(len(pending))
                    pending = []
            writer.write(pending)
            writer.close()
    return count, bad.count


class _BadRows:
    """Says what is wrong with a row, or stops there."""

    def __init__(self, table: Table, skip: bool) -> None:
        self.table, self.skip, self.count = table, skip, 0

    def __call__(self, row: Row, problem: str) -> None:
        said = f"{self.table.name}, row {row.number}: {problem}"
        if not self.skip:
            raise ValueError(f"{said}; mend it, or go on without it (--bad-rows skip)")
        self.count += 1
        print(f"{said}; skipped", file=sys.stderr)


def _read(
    table: Table, column: str | None, second: str | None, known: Collection[str] | None
) -> Iterator[tuple[Row, Text | Bad]]:
    """Each row and what the model gets of it; of columns that are not ``known`` (None: all are) it is bad."""
    for row in table.rows:
        texts: list[Any] = [row.values.get(name) for name in (column, second) if name is not None] or [row.input]
        new = [] if known is None else [name for name in row.values if name not in known]
        wrong = row.problem or next(filter(None, map(_problem, texts)), "")
        wrong = wrong or (f"the column {new[0]!r} is new; write .jsonl, where rows may differ" if new else "")
        yield row, Bad(wrong) if wrong else texts[0] if second is None else (texts[0], texts[1])


def _problem(text: Any) -> str:
    if text is None:
        return "the text is missing"
    if isinstance(text, np.ndarray):
        return ""
    words: list[Any] = text if isinstance(text, list) else [text]
    if not all(isinstance(word, str) for word in words):
        return f"expected a text, got {text!r:.40}"
    return encoding_problem(words)


def _answered(predictor: Predictor, rows: Iterator[tuple[Row, Any]]) -> Iterator[tuple[Row, Any]]:
    """Each row with its answer: the predictor reads ahead, and the rows wait here."""
    waiting: list[Row] = []

    def texts() -> Iterator[Any]:
        for row, text in rows:
            waiting.append(row)
            yield text

    taken = 0
    for answer in predictor.answers(texts()):
        yield waiting[taken], answer
        taken += 1
        if taken == len(waiting):
            waiting.clear()
            taken = 0
