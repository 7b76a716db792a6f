"""QQP, SST-2 and MNLI from GLUE's TSV files, from JSON lines, and QQP's four-column form."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from cosformer.data.archive import matching, text_lines
from cosformer.data.dataset import Dataset
from cosformer.data.encoding import Row, prepare_rows, split_anew

# the folder original/ of GLUE's archives holds other files of the same names
_FILE = re.compile(r"^(?!(?:.*/)?original/)(?:.*/)?(train|dev|test)(_matched|_mismatched)?\.(tsv|jsonl)$")
_SPLITS = {"train": "train", "dev": "valid", "test": "test"}


@dataclass(frozen=True)
class _Form:
    """The columns of one set: texts (by each name they go by), label, and the label's spellings, by class."""

    texts: tuple[tuple[str, ...], ...]
    label: tuple[str, ...]
    classes: tuple[str, ...]
    spellings: dict[str, int]
    drop_odd_rows: bool = False  # GLUE's own recipe drops QQP rows with a tab inside a question


_BINARY = {"0": 0, "1": 1}
_FORMS = {
    "qqp": _Form(
        (("question1",), ("question2",)), ("is_duplicate", "label"), ("different", "duplicate"), _BINARY, True
    ),
    "sst2": _Form((("sentence",),), ("label",), ("negative", "positive"), _BINARY),
    "mnli": _Form(
        (("sentence1", "premise"), ("sentence2", "hypothesis")),
        ("gold_label", "label"),
        ("entailment", "neutral", "contradiction"),
        {"entailment": 0, "neutral": 1, "contradiction": 2},
    ),
}


def _glue(
    name: str,
    *,
    path: str | None = None,
    tokenizer: str = "bytes",
    max_length: int = 512,
    resplit: Sequence[float] | None = None,
    seed: int = 0,
    errors: str = "strict",
) -> Dataset:
    """Rows ``<s> A </s>``, of pairs ``<s> A </s> </s> B </s>``.

    ``tokenizer`` is "bytes", "bpe:N", "bpe-lower:N" or a folder; ``resplit`` (three shares, as 80 10 10) pools all
    labelled rows and deals them anew by ``seed``; ``errors`` is "strict" or "replace" for text that is not UTF-8.
    """
    if resplit is not None and len(resplit) != 3:
        raise ValueError(f"resplit={resplit!r}; three shares (train, valid, test), as 80 10 10")
    shares = None if resplit is None else [float(share) for share in resplit]

    def read(files: Path) -> tuple[dict[str, list[Row]], dict[str, int]]:
        splits, dropped = read_splits(files, name, errors)
        if resplit is not None:
            labelled = [row for rows in splits.values() for row in rows if row[2] is not None]
            splits = split_anew(labelled, resplit, seed)
        return splits, {"rows dropped": dropped}

    options = {"tokenizer": tokenizer, "max_length": max_length, "resplit": shares, "seed": seed, "errors": errors}
    return prepare_rows(name, path, read, _FORMS[name].classes, **options)


qqp = partial(_glue, "qqp")  # Quora question pairs, label 1 = duplicate
sst2 = partial(_glue, "sst2")  # phrases of film reviews, label 1 = positive
# premise and hypothesis; valid and test are the matched splits, valid_mismatched and test_mismatched the others
mnli = partial(_glue, "mnli")


def read_splits(path: Path, name: str, errors: str) -> tuple[dict[str, list[Row]], int]:
    """The rows of each split of set ``name``, and how many were dropped."""
    form, splits, dropped = _FORMS[name], {}, 0
    wanted = "none of train.tsv, dev.tsv, test.tsv (or .jsonl, or dev_matched and the like)"
    for match, stream in matching(path, _FILE, wanted):
        file, split = match.string, _SPLITS[match[1]] + ("_mismatched" if match[2] == "_mismatched" else "")
        if split in splits:
            raise ValueError(f"{path} holds more than one file for the split {split!r}; the second is {file}")
        read = _json_rows if match[3] == "jsonl" else _tsv_rows
        rows = list(read(file, stream, form, errors))
        splits[split] = [row for row in rows if row is not None]
        dropped += len(rows) - len(splits[split])
        labelled = sum(row[2] is not None for row in splits[split])
        if labelled not in (0, len(splits[split])):
            raise ValueError(f"{file}: only {labelled} of {len(splits[split])} rows have a label")
    return splits, dropped


def _json_rows(file: str, stream: IO[bytes], form: _Form, errors: str) -> Iterator[Row]:
    for number, line in text_lines(stream, file, errors):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}, line {number}: not JSON ({error})") from None
        texts = [next((entry[n] for n in names if n in entry), None) for names in form.texts]
        if None in texts:
            raise ValueError(
                f"{file}, line {number}: has the keys {sorted(entry)}, expected {[n[-1] for n in form.texts]}"
            )
        label = next((entry[n] for n in form.label if n in entry), None)
        yield _row(file, number, texts, None if label is None else str(label), form)


def _tsv_rows(file: str, stream: IO[bytes], form: _Form, errors: str) -> Iterator[Row | None]:
    lines = text_lines(stream, file, errors)
    _, first = next(lines, (1, ""))
    header = first.removeprefix("\ufeff").split("\t")
    columns = [next((header.index(n) for n in names if n in header), None) for names in form.texts]
    label = next((header.index(n) for n in form.label if n in header), None)
    if None in columns and len(form.texts) == 2 and len(header) == 4 and header[0] in form.spellings:
        yield _four_columns(file, 1, first, form)
        for number, line in lines:
            yield _four_columns(file, number, line, form)
        return
    if None in columns:
        raise ValueError(f"{file}, line 1: the columns are {header}, expected {[n[0] for n in form.texts]}")
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(header):
            if not form.drop_odd_rows:
                raise ValueError(f"{file}, line {number}: {len(fields)} columns, not the {len(header)} of the header")
            yield None
            continue
        texts = [fields[c] for c in columns if c is not None]
        yield _row(file, number, texts, None if label is None else fields[label], form)


def _four_columns(file: str, number: int, line: str, form: _Form) -> Row:
    """``label, first, second, id``, with quotes doubled and fields quoted as in CSV."""
    fields = line.split("\t")
    if len(fields) != 4:
        raise ValueError(f"{file}, line {number}: {len(fields)} columns, not 4 (label, question, question, id)")
    texts = [t[1:-1].replace('""', '"') if len(t) > 1 and t[0] == t[-1] == '"' else t for t in fields[1:3]]
    return _row(file, number, texts, fields[0], form)


def _row(file: str, number: int, texts: Sequence[str | None], label: str | None, form: _Form) -> Row:
    if label is not None and label not in form.spellings:
        raise ValueError(f"{file}, line {number}: label {label!r} is none of {', '.join(form.spellings)}")
    first, second = texts[0], texts[1] if len(texts) > 1 else None
    assert first is not None
    return first.strip(), None if second is None else second.strip(), None if label is None else form.spellings[label]
