"""Your own tables: a text column, a target column, class names, and your splits if there are any."""

from collections.abc import Iterator
from typing import Any

from cosformer.data.cache import prepare
from cosformer.data.columns import choose_columns
from cosformer.data.dataset import SPLITS, Dataset, Description, Writer
from cosformer.data.dealing import check_shares, split_by_file, with_splits
from cosformer.data.encoding import smallest_dtype, tokenizer_identity
from cosformer.data.own_files import OwnFile, content_hash, own_files, said_split
from cosformer.data.subwords import batched, text_vocabulary
from cosformer.data.table_files import ENDINGS, TableFile, is_table, open_table, read_tables
from cosformer.data.targets import TARGETS, Classes, Row, repeated, words_of
from cosformer.suggest import unknown

_BATCH = 10_000


def table(
    *,
    path: str | None = None,
    target: str = "class",
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
    pairs: bool = False,
    split: str | None = None,
    group: str | None = None,
    tokenizer: str = "bytes",
    valid: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    delimiter: str | None = None,
    quotes: bool = True,
    encoding: str = "utf-8",
    errors: str = "strict",
    sha256: str | None = None,
) -> Dataset:
    """Texts with what they teach, as ``<s> A </s>``, not cut: a task's ``data.length`` and ``data.long`` say what
    becomes of long ones.

    ``path``: a file, a folder or a glob of .csv, .tsv, .jsonl, .parquet or .arrow files, compressed or not, or
    ``hub:NAME`` or ``hub:NAME:CONFIG``, a set of the Hugging Face hub. ``target``:
    what the column ``label`` holds: a "class", a "number", several "classes" (a list, or names with | between them),
    "tags" of the words in the column ``text``, or a "text" to write. ``pairs``: two texts a row, in the columns
    ``text`` and ``second``. Columns are found by their usual names unless given. Splits come from the column ``split``,
    from the files' names (train, valid, test), or are dealt by ``seed``: the shares ``valid`` and ``test``, classes in
    proportion, rows with the same value in the column ``group`` together. ``tokenizer``: "bytes", "bpe:N" learnt from
    the training rows, or a tokenizer's folder. ``delimiter`` and ``quotes`` are for CSV, ``encoding`` and ``errors``
    for text files. ``sha256``: refuse files of another content.
    """
    if path is None:
        raise ValueError(
            "the set 'table' needs the option path: a CSV, TSV, JSON lines, parquet or arrow file, a folder or a glob"
        )
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    pairs = pairs or second is not None
    if pairs and target not in ("class", "number"):
        raise ValueError(f"pairs of texts have a class or a number, not target={target!r}")
    check_shares((valid, test))
    kind = TARGETS[target]
    reading = {"delimiter": delimiter, "quotes": quotes, "encoding": encoding, "errors": errors}
    asked = {"text": text, "second": second, "label": label, "split": split, "group": group}
    columns = _chosen(path, asked, reading, target=target, pairs=pairs)
    options = {"sha256": content_hash(path, _files(path), sha256), **columns, "target": target}
    options |= {"tokenizer": tokenizer_identity(tokenizer), "valid": valid, "test": test, "seed": seed, **reading}

    def build(writer: Writer) -> Description:
        rows = _rows(path, kind, columns, reading)
        kind.check(path, rows)
        rows = with_splits(path, rows, [kind.stratum(row.label) for row in rows], (valid, test), seed)
        names = kind.class_names(rows)
        vocabulary = text_vocabulary(
            tokenizer, lambda: (text for row in rows if row.split == "train" for text in kind.texts(row))
        )
        for name in SPLITS:
            part = [row for row in rows if row.split == name]
            if part:
                size = max(vocabulary.size, len(names or ()) + 1)
                has_second = pairs or target == "text"
                out = writer.split(name, smallest_dtype(size), pair=has_second, labels=kind.labels, marks=kind.marks)
                for batch in batched(part, _BATCH):
                    kind.write(out, batch, vocabulary, names)
        return Description(
            vocabulary,
            None if names is None else len(names),
            class_names=names,
            notes=repeated(rows),
            choices=columns,
        )

    return prepare("table", options, build)


def _files(path: str) -> Iterator[OwnFile]:
    none = True
    for file in own_files(path, is_table):
        if file.ending not in ENDINGS:
            raise ValueError(f"{file.shown} is no table; known endings: {', '.join(ENDINGS)} (each may be compressed)")
        none = False
        yield file
    if none:
        raise ValueError(f"{path} holds no table; known endings: {', '.join(ENDINGS)} (each may be compressed)")


def _chosen(path: str, asked: dict[str, str | None], reading: dict[str, Any], **what: Any) -> dict[str, str]:
    """The columns by role, chosen from the first file's header."""
    files = _files(path)  # held: when the generator goes, its file is closed
    first = open_table(next(files), **reading)
    return choose_columns(first.name, first.columns, asked, **what)


def _rows(path: str, kind: Classes, columns: dict[str, str], reading: dict[str, Any]) -> list[Row]:
    """Every row of every file; the split is what the column or the file's name says, or still open."""
    tables = read_tables(_files(path), columns.values(), reading)
    found = [_row(table, kind, number, values, columns) for table, number, values in tables]
    return found if "split" in columns else split_by_file(found)


def _row(file: TableFile, kind: Classes, number: int, values: dict[str, Any], columns: dict[str, str]) -> Row:
    place = file.place(number)
    texts = [
        _text(place, columns[role], values, TARGETS["tags"] is kind) for role in ("text", "second") if role in columns
    ]
    label = columns["label"]
    group = str(values.get(columns["group"])) if "group" in columns else place
    taught = kind.read(values.get(label), place, label, file.class_names.get(label))
    split = said_split(values, columns, place)
    return Row(texts[0], texts[1] if len(texts) > 1 else None, taught, place, split, group)


def _text(place: str, column: str, values: dict[str, Any], words: bool) -> Any:
    found = values.get(column)
    if words:
        return [str(word) for word in words_of(found)]
    if found is not None and not isinstance(found, str):
        raise ValueError(
            f"{place}: column {column!r} holds {found!r}, which is no text; name the text's column with "
            "--data.options.text"
        )
    return (found or "").strip()
