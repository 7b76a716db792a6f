"""Your own series of readings: arrays ``[rows, steps, channels]``, or tables with one reading per row."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np

from cosformer.data.arrays import array_files, array_rows, holds_arrays
from cosformer.data.cache import prepare
from cosformer.data.columns import TIME, USUAL, choose, named
from cosformer.data.dataset import SPLITS, Dataset, Description, Writer
from cosformer.data.dealing import check_shares, split_by_file, with_splits
from cosformer.data.own_files import content_hash, own_files, said_split
from cosformer.data.table_files import TableFile, is_table, open_table, read_tables
from cosformer.data.targets import TARGETS, Row, repeated
from cosformer.data.vocabulary import Channels
from cosformer.suggest import unknown

_TARGETS = ("next", "class", "number")


def series(
    *,
    path: str | None = None,
    target: str = "next",
    series: str | None = None,
    channels: str | None = None,
    time: str | None = None,
    label: str | None = None,
    split: str | None = None,
    valid: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    sha256: str | None = None,
) -> Dataset:
    """Rows of readings, float32 ``[steps, channels]``, with a class or a number each, or to be forecast.

    ``path``: a file, a folder or a glob of .npy and .npz arrays ``[rows, steps, channels]`` or ``[rows, steps]``, or of
    tables (CSV, JSON lines, parquet) with one reading a row. ``target``: "next" to forecast, or what the label of a
    series is, a "class" or a "number": in NAME.labels.npy, in ``labels`` of the .npz, or in the column ``label``. Of a
    table: rows with the same value in the column ``series`` are one series (without it a file is one); ``channels``
    names the columns of readings, commas between, by default every other one that holds numbers; rows are put in the
    order of the column ``time``, by default that of the file. Splits come from files' names (train, valid, test) or the
    column ``split``; or whole series are dealt by ``seed``, and to forecast every series is cut in time: its end, the
    share ``test``, and what is before it, the share ``valid``, are for evaluation. ``sha256``: refuse files of another
    content.
    """
    if path is None:
        raise ValueError(
            "the set 'series' needs the option path: .npy or .npz arrays, or tables with a reading in each row"
        )
    if target not in _TARGETS:
        raise unknown("target", target, _TARGETS)
    check_shares((valid, test))
    arrays = holds_arrays(path, is_table, "tables of readings (.csv, …)")
    reading = {"delimiter": delimiter, "quotes": True, "encoding": encoding, "errors": "strict"}
    columns: dict[str, Any] = {}
    asked = {"series": series, "time": time, "label": label, "split": split}
    if arrays:
        given = [name for name, value in (asked | {"channels": channels}).items() if value is not None]
        if given:
            raise ValueError(f"{given[0]} names a column of a table; {path} holds arrays")
    else:
        columns = _columns(path, asked, channels, reading, target)
    found = content_hash(path, array_files(path) if arrays else own_files(path, is_table), sha256)
    options = {"sha256": found, "target": target, **columns, "valid": valid, "test": test, "seed": seed, **reading}

    def build(writer: Writer) -> Description:
        if arrays:
            rows = array_rows(path, None if target == "next" else target, readings=True)
            names = [f"channel{i + 1}" for i in range(rows[0].text.shape[-1])]
        else:
            rows, names = _table_rows(path, target, columns, reading), columns["channels"].split(",")
        shares = (valid, test)
        classes, number = None, None
        if target == "next":
            parts = _cut_in_time(path, rows, shares)
        else:
            kind = TARGETS[target]
            kind.check(path, rows)
            rows = with_splits(path, rows, [kind.stratum(row.label) for row in rows], shares, seed)
            classes = kind.class_names(rows)
            number = kind.number
            parts = rows
        train = np.concatenate([row.text for row in parts if row.split == "train"]).astype(np.float64)
        scale = train.std(0)
        vocabulary = Channels(names, train.mean(0).tolist(), np.where(scale > 0, scale, 1.0).tolist())
        for name in SPLITS:
            part = [row for row in parts if row.split == name]
            if part:
                labels = "float64" if target == "number" else True
                out = writer.split(name, np.float32, labels=labels, channels=len(names))
                taught = [row.label if number is None else number(row.label, classes) for row in part]
                out.add_many(np.concatenate([row.text for row in part]), [len(row.text) for row in part], taught)
        return Description(
            vocabulary,
            None if classes is None else len(classes),
            class_names=classes,
            notes=repeated(rows) if target != "next" else {},
            choices={key: value for key, value in columns.items() if value is not None},
        )

    return prepare("series", options, build)


# --- tables


def _columns(
    path: str, asked: dict[str, str | None], channels: str | None, reading: dict[str, Any], target: str
) -> dict[str, Any]:
    """The column of each role, and the channels, commas between: chosen from the first file."""
    files = own_files(path, is_table)  # held: when the generator goes, its file is closed
    table = open_table(next(files), **reading)
    chosen = {role: named(table.name, table.columns, name) for role, name in asked.items() if name is not None}
    usual = {"time": TIME} | ({} if target == "next" else {"label": USUAL[target]["label"]})
    chosen = choose(table.columns, chosen, usual)
    if target != "next" and "label" not in chosen:
        raise ValueError(
            f"{table.name}: which column is the label? It has {', '.join(table.columns)}; say so with "
            "--data.options.label"
        )
    if target != "next" and "series" not in chosen:
        raise ValueError(
            f"{table.name}: which column says what rows are one series? It has {', '.join(table.columns)}; say so with"
            " --data.options.series"
        )
    first = next(table.rows, None)
    if first is None:
        raise ValueError(f"{table.name} holds a header and no rows")
    free = [name for name in table.columns if name not in chosen.values()]
    if channels is not None:
        names = [named(table.name, table.columns, name.strip()) for name in channels.split(",")]
    else:
        names = [name for name in free if _number(first[1].get(name)) is not None]
    if not names:
        raise ValueError(
            f"{table.name}: no column holds numbers; name those of the readings with --data.options.channels A,B"
        )
    return chosen | {"channels": ",".join(names)}


def unlabelled(path: str, options: Mapping[str, Any]) -> list[Row]:
    """The series in the tables of ``path`` by the columns in ``options``; ``group`` is what a series is called."""
    columns = {role: options[role] for role in ("series", "time", "channels") if options.get(role) is not None}
    reading = {
        "delimiter": options.get("delimiter"),
        "quotes": True,
        "encoding": options.get("encoding", "utf-8"),
        "errors": "strict",
    }
    return _table_rows(path, "next", columns, reading)


def _table_rows(path: str, target: str, columns: dict[str, Any], reading: dict[str, Any]) -> list[Row]:
    """Every series, its readings in order of time."""
    channels = columns["channels"].split(",")
    found: dict[tuple[str, str], list[tuple[Any, list[float]]]] = {}
    about: dict[tuple[str, str], Row] = {}
    names: dict[str, None] = {}
    wanted = [*channels, *(name for role, name in columns.items() if role != "channels")]
    for table, number, values in read_tables(own_files(path, is_table), wanted, reading):
        names[table.name] = None
        place = table.place(number)
        # a series does not reach over files, unless a column says so
        key = ("", str(values[columns["series"]])) if "series" in columns else (table.name, "")
        row = _about(place, table, values, columns, target, key)
        first = about.setdefault(key, row)
        if (row.label, row.split) != (first.label, first.split):
            raise ValueError(
                f"{place}: series {key[1]!r} has the label {row.label!r} here and {first.label!r} at {first.place}; a "
                "series has one label and one split"
            )
        when = _time(values.get(columns["time"]), place, columns["time"]) if "time" in columns else number
        found.setdefault(key, []).append((when, [_reading(values.get(name), place, name) for name in channels]))
    rows = []
    for key, readings in found.items():
        if "time" in columns:
            readings.sort(key=lambda entry: entry[0])
            again = next((b for (a, _), (b, _) in pairwise(readings) if a == b), None)
            if again is not None and "series" not in columns:
                raise ValueError(
                    f"{key[0]}: {columns['time']} {again:g} appears more than once; name the column that says which "
                    "rows are one series with --data.options.series, or leave out what comes twice"
                )
        rows.append(replace(about[key], text=np.array([reading for _, reading in readings], np.float32)))
    return rows if "split" in columns else split_by_file(rows, names)


def _about(
    place: str, table: TableFile, values: dict[str, Any], columns: dict[str, Any], target: str, key: tuple[str, str]
) -> Row:
    split, label = said_split(values, columns, place), None
    if target != "next":
        column = columns["label"]
        label = TARGETS[target].read(values.get(column), place, column, table.class_names.get(column))
    return Row(None, None, label, place, split, key[1] or key[0])


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _reading(value: Any, place: str, column: str) -> float:
    found = _number(value)
    if found is None or not np.isfinite(found):
        raise ValueError(
            f"{place}: column {column!r} holds {value!r}; readings must be finite numbers: fill the gap in, leave the "
            "row out, or leave the column out with --data.options.channels"
        )
    return found


def _time(value: Any, place: str, column: str) -> Any:
    """A number, or a date and time as ISO 8601 writes them."""
    number = _number(value)
    if number is not None:
        return number
    if isinstance(value, datetime):
        return value.timestamp()
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        raise ValueError(
            f"{place}: column {column!r} holds {value!r}; expected a number or a time such as 2024-05-31T12:30 (ISO "
            "8601)"
        ) from None


# --- forecasting


def _cut_in_time(path: str, rows: Sequence[Row], shares: tuple[float, float]) -> list[Row]:
    """Each split's series up to its end; the label is the first scored step, and earlier steps are context."""
    named = {row.split for row in rows}
    valid, test = shares if named == {None} else (0.0 if "valid" in named else shares[0], 0.0)
    parts = []
    for row in rows:
        steps = len(row.text)
        if row.split in ("valid", "test"):
            parts.append(replace(row, label=min(1, steps - 1)))
            continue
        last, middle = (max(1, round(steps * share)) if share else 0 for share in (test, valid))
        if steps < 2 + last + middle:
            raise ValueError(
                f"{row.place}: a series of {steps} steps is too short to be cut into training and evaluation; leave it "
                "out"
            )
        ends = [steps - last - middle, steps - last, steps]
        start = 0
        for split, end in zip(SPLITS, ends, strict=True):
            if end > start:
                parts.append(replace(row, text=row.text[:end], split=split, label=start))
            start = end
    for split in ("train", "valid"):
        if not any(row.split == split and len(row.text) > 1 for row in parts):
            raise ValueError(f"{path}: no series of two steps or more is left for the split {split!r}")
    return parts
