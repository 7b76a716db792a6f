"""Your own sequences: FASTA and FASTQ files, and arrays of ids such as events, codes or notes."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from cosformer.data.arrays import array_files, array_rows, holds_arrays
from cosformer.data.cache import prepare
from cosformer.data.dataset import SPLITS, Dataset, Description, Writer
from cosformer.data.dealing import check_shares, split_by_file, with_splits
from cosformer.data.encoding import smallest_dtype
from cosformer.data.fasta import ALPHABETS, ENDINGS, guess_alphabet, is_fasta, records
from cosformer.data.own_files import OwnFile, content_hash, own_files, splits_by_name
from cosformer.data.subwords import batched
from cosformer.data.targets import TARGETS, Row, repeated
from cosformer.data.vocabulary import Ids, Letters
from cosformer.suggest import unknown

_BATCH = 10_000
_FEW, _STRETCHES = 20, 100  # fewer rows than that, without labels, are dealt to the splits in about so many stretches


def sequences(
    *,
    path: str | None = None,
    target: str | None = None,
    label: str = "label",
    alphabet: str | None = None,
    num_ids: int | None = None,
    valid: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    sha256: str | None = None,
) -> Dataset:
    """Letters or whole numbers as tokens: rows with an end token after each, or, with a ``target``, as ``<s> ROW </s>``
    with labels.

    ``path``: a file, a folder or a glob of FASTA or FASTQ files, compressed or not, or of .npy and .npz arrays ``[rows,
    steps]``. ``target``: what a label is, a "class" or a "number"; None: no labels. The label of an array's row stands
    in NAME.labels.npy, or as ``labels`` in the .npz; that of a record in its header, as ``label=promoter`` (the option
    ``label`` names another key), or else, of a class, it is the name of its file. ``alphabet``: "dna", "rna" or
    "protein", by default what nine of ten letters are. ``num_ids``: how many different ids there can be, by default one
    more than the largest. Splits come from the files' names (train, valid, test) or are dealt by ``seed``: the shares
    ``valid`` and ``test``, classes in proportion. ``sha256``: refuse files of another content.
    """
    if path is None:
        raise ValueError(
            "the set 'sequences' needs the option path: FASTA or FASTQ files, or .npy and .npz arrays of ids"
        )
    if target not in (None, "class", "number"):
        raise unknown("target", target, ("class", "number"))
    check_shares((valid, test))
    arrays = holds_arrays(path, is_fasta, f"FASTA files ({', '.join(ENDINGS)})")
    found = content_hash(path, array_files(path) if arrays else _fasta_files(path), sha256)
    options = {"sha256": found, "target": target, "label": label, "alphabet": alphabet, "num_ids": num_ids}
    options |= {"valid": valid, "test": test, "seed": seed}

    def build(writer: Writer) -> Description:
        rows = array_rows(path, target, readings=False) if arrays else _records(path, target, label)
        vocabulary, choices = _vocabulary(rows, alphabet, num_ids, arrays=arrays)
        kind = TARGETS[target or "class"]
        names = None
        if target is None:
            rows = _stretches(rows)
        else:
            kind.check(path, rows)
        rows = with_splits(
            path, rows, [None if target is None else kind.stratum(row.label) for row in rows], (valid, test), seed
        )
        if target is not None:
            names = kind.class_names(rows)
        for name in SPLITS:
            part = [row for row in rows if row.split == name]
            if not part:
                continue
            labels = False if target is None else kind.labels
            out = writer.split(name, smallest_dtype(vocabulary.size), labels=labels)
            for batch in batched(part, _BATCH):
                if target is not None:
                    kind.write(out, batch, vocabulary, names)
                    continue
                for row in batch:
                    ids = vocabulary.encode([row.text])[0]
                    ids = np.append(ids, vocabulary.eos_id) if row.label else ids
                    out.add_many(ids, [len(ids)])
        return Description(
            vocabulary,
            None if names is None else len(names),
            class_names=names,
            notes={} if target is None else repeated(rows),
            choices=choices,
        )

    return prepare("sequences", options, build)


def _fasta_files(path: str) -> Iterator[OwnFile]:
    return own_files(path, is_fasta)


def _records(path: str, target: str | None, key: str) -> list[Row]:
    """The records; the label is in the header, or it is the file's name."""
    pattern = re.compile(rf"(?:^|[\s|;]){re.escape(key)}=([^\s|;]+)")
    found: list[Row] = []
    names = [file.name for file in _fasta_files(path)]
    for file in _fasta_files(path):
        for record in records(file):
            place = f"{file.shown}, line {record.line}"
            said = pattern.search(record.header)
            label: Any = None
            if target is not None:
                label = said[1] if said else _class_of_file(file, names, target, place, key)
                label = TARGETS[target].read(label, place, key, None)
            found.append(Row(record.letters, None, label, place, None, place))
    return split_by_file(found)


def _class_of_file(file: OwnFile, names: list[str], target: str, place: str, key: str) -> str:
    if target != "class" or len(names) == 1 or splits_by_name(names) is not None:
        raise ValueError(
            f"{place}: no {key}=... in the header; write one into each, or keep each class in a file of its own"
        )
    return file.name.rpartition("/")[2].rpartition(".")[0]


def _vocabulary(
    rows: list[Row], alphabet: str | None, num_ids: int | None, *, arrays: bool
) -> tuple[Any, dict[str, Any]]:
    """The ids' meaning, and the alphabet or the number of ids that was found."""
    if arrays:
        if alphabet is not None:
            raise ValueError(f"alphabet={alphabet!r} is for FASTA and FASTQ files; arrays hold ids already")
        largest, place = max((int(row.text.max(initial=0)), row.place) for row in rows)
        if num_ids is not None and largest >= num_ids:
            raise ValueError(f"{place}: the id {largest} is not below num_ids={num_ids}")
        return Ids(num_ids or largest + 1), {"num_ids": num_ids or largest + 1}
    if num_ids is not None:
        raise ValueError(
            f"num_ids={num_ids} is for arrays of ids; of FASTA and FASTQ files the alphabet counts the letters"
        )
    name = alphabet or guess_alphabet([row.text for row in rows])
    if name not in ALPHABETS:
        raise unknown("alphabet", name, ALPHABETS)
    vocabulary = Letters(ALPHABETS[name])
    for row in rows:
        if strange := vocabulary.strange(row.text):
            raise ValueError(
                f"{row.place}: the letter {strange!r} is not in the {name} alphabet {vocabulary.alphabet}; choose "
                "another with the option alphabet (dna, rna, protein), or mend the record"
            )
    return vocabulary, {"alphabet": name}


def _stretches(rows: list[Row]) -> list[Row]:
    """What is dealt to the splits: rows, or, of fewer than twenty, such as a genome, stretches of a hundredth of the
    whole; ``label`` says whether one ends a row."""
    total = sum(len(row.text) for row in rows)
    limit = max(1, -(-total // _STRETCHES)) if len(rows) < _FEW else total
    found = []
    for row in rows:
        starts = [*range(0, len(row.text), limit), len(row.text)]
        for start, stop in itertools.pairwise(starts):
            found.append(
                Row(row.text[start:stop], None, stop == len(row.text), row.place, row.split, (row.place, start))
            )
    return found
