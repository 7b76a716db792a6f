"""What a row of a table is to teach: a class, several, a number, a tag for each word, or another text."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cosformer.data.dataset import SplitWriter
from cosformer.data.encoding import frame
from cosformer.data.vocabulary import Bytes, TextVocabulary


@dataclass(frozen=True)
class Row:
    """One row of a table; ``place`` is its file and line, for messages."""

    text: Any
    second: str | None
    label: Any
    place: str
    split: str | None
    group: Hashable


Names = Sequence[str] | None  # of classes


class Classes:
    """One of some classes; names are kept."""

    labels: bool | str = True
    marks = False

    def read(self, value: Any, place: str, column: str, names: Names) -> Any:
        if is_missing(value):
            raise ValueError(
                f"{place}: no label in column {column!r}; fill it in or remove the row (`cosformer predict` is for "
                "rows without)"
            )
        return label_name(value, names)

    def stratum(self, label: Any) -> Hashable:
        return label

    def check(self, path: str, rows: list[Row]) -> None:
        known = {label for row in rows for label in self.named(row)}
        if len(known) < 2:
            raise ValueError(
                f"{path}: every row has the label {next(iter(known), '')!r}; classification needs at least two classes"
            )
        if len(known) > 20 and len(known) > len(rows) / 2:
            raise ValueError(
                f"{path}: {len(known):,} different labels in {len(rows):,} rows do not look like classes; name the "
                "label's column with --data.options.label, or predict a number with the recipe regress"
            )

    def named(self, row: Row) -> Sequence[str]:
        """The names of classes in one row."""
        return [row.label]

    def class_names(self, rows: list[Row]) -> tuple[str, ...] | None:
        """The classes of the training rows: numbers in their order, else by the alphabet."""
        known = {label for row in rows if row.split == "train" for label in self.named(row)}
        for row in rows:
            strange = [label for label in self.named(row) if label not in known]
            if strange:
                raise ValueError(
                    f"{row.place}: the label {strange[0]!r} of this {row.split} row does not occur in the training "
                    f"rows, which have {_short(sorted(known))}"
                )
        try:
            return tuple(sorted(known, key=float))
        except ValueError:
            return tuple(sorted(known))

    def texts(self, row: Row) -> list[str]:
        """What a vocabulary is learnt from."""
        return [row.text] if row.second is None else [row.text, row.second]

    def write(
        self, out: SplitWriter, rows: Sequence[Row], vocabulary: TextVocabulary, names: Sequence[str] | None
    ) -> None:
        second = None if rows[0].second is None else framed([row.second or "" for row in rows], vocabulary)
        labels = [self.number(row.label, names) for row in rows]
        out.add_many(*framed([row.text for row in rows], vocabulary), labels, second=second)

    def number(self, label: Any, names: Names) -> float:
        assert names is not None
        return names.index(label)


class Numbers(Classes):
    """A number."""

    labels = "float64"

    def read(self, value: Any, place: str, column: str, names: Names) -> float:
        if is_missing(value):
            raise ValueError(
                f"{place}: no number in column {column!r}; fill it in or remove the row (`cosformer predict` is for "
                "rows without)"
            )
        try:
            found = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{place}: column {column!r} holds {value!r}, which is no number") from None
        if not np.isfinite(found):
            raise ValueError(f"{place}: column {column!r} holds {value!r}; numbers must be finite")
        return found

    def stratum(self, label: Any) -> Hashable:
        return None

    def check(self, path: str, rows: list[Row]) -> None:
        if len({row.label for row in rows}) < 2:
            raise ValueError(f"{path}: every row has the number {rows[0].label:g}; there is nothing to learn")

    def class_names(self, rows: list[Row]) -> None:
        return None

    def number(self, label: Any, names: Names) -> float:
        return label


class ClassSets(Classes):
    """Any number of classes: a list, or names with ``|`` between them; an empty cell is none."""

    labels = False
    marks = True

    def read(self, value: Any, place: str, column: str, names: Names) -> tuple[str, ...]:
        parts = value.split("|") if isinstance(value, str) else [] if value is None else list(value)
        return tuple(dict.fromkeys(label_name(part, names) for part in parts if not is_missing(part)))

    def named(self, row: Row) -> Sequence[str]:
        return row.label

    def write(
        self, out: SplitWriter, rows: Sequence[Row], vocabulary: TextVocabulary, names: Sequence[str] | None
    ) -> None:
        assert names is not None
        sets = [sorted(names.index(label) for label in row.label) for row in rows]
        marks = np.array([number for each in sets for number in each], np.int64), [len(each) for each in sets]
        out.add_many(*framed([row.text for row in rows], vocabulary), marks=marks)


class Tags(Classes):
    """A tag for each word: two lists, or two cells with spaces between the words and the tags.

    A word's tag is kept with its first token, as its class's number plus one; 0 is no tag.
    """

    labels = False
    marks = True

    def read(self, value: Any, place: str, column: str, names: Names) -> list[str]:
        found = [label_name(tag, names) for tag in words_of(value)]
        if not found:
            raise ValueError(f"{place}: no tags in column {column!r}; fill them in or remove the row")
        return found

    def named(self, row: Row) -> Sequence[str]:
        return row.label

    def stratum(self, label: Any) -> Hashable:
        return None

    def check(self, path: str, rows: list[Row]) -> None:
        for row in rows:
            if len(row.text) != len(row.label):
                raise ValueError(f"{row.place}: {len(row.text)} words and {len(row.label)} tags; each word needs one")
        super().check(path, rows)

    def texts(self, row: Row) -> list[str]:
        return [" ".join(row.text)]

    def write(
        self, out: SplitWriter, rows: Sequence[Row], vocabulary: TextVocabulary, names: Sequence[str] | None
    ) -> None:
        assert names is not None
        for row in rows:
            ids, first = words_to_ids(row.text, vocabulary)
            marks = np.zeros(len(ids), np.int64)
            marks[first] = [names.index(tag) + 1 for tag in row.label]
            out.add_many(ids, [len(ids)], marks=(marks, [len(marks)]))


class Texts(Classes):
    """Another text: a translation, a summary."""

    labels = False

    def read(self, value: Any, place: str, column: str, names: Names) -> str:
        if not isinstance(value, str) or is_missing(value):
            raise ValueError(f"{place}: no text in column {column!r}; fill it in or remove the row")
        return value.strip()

    def stratum(self, label: Any) -> Hashable:
        return None

    def check(self, path: str, rows: list[Row]) -> None:
        pass

    def class_names(self, rows: list[Row]) -> None:
        return None

    def texts(self, row: Row) -> list[str]:
        return [row.text, row.label]

    def write(
        self, out: SplitWriter, rows: Sequence[Row], vocabulary: TextVocabulary, names: Sequence[str] | None
    ) -> None:
        second = framed([row.label for row in rows], vocabulary)
        out.add_many(*framed([row.text for row in rows], vocabulary), second=second)


TARGETS: dict[str, Classes] = {
    "class": Classes(),
    "number": Numbers(),
    "classes": ClassSets(),
    "tags": Tags(),
    "text": Texts(),
}


def repeated(rows: Sequence[Row]) -> dict[str, int]:
    """How many rows hold nothing, and how many of an evaluation were in training, too."""

    def content(row: Row) -> tuple[Any, ...]:
        text = row.text.tobytes() if isinstance(row.text, np.ndarray) else row.text
        return (tuple(text) if isinstance(text, list) else text, row.second)

    train = {content(row) for row in rows if row.split == "train"}
    return {
        "rows without text": sum(not len(row.text) for row in rows),
        "rows of valid or test whose text is in train too": sum(
            row.split != "train" and len(row.text) > 0 and content(row) in train for row in rows
        ),
    }


def is_missing(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def label_name(label: Any, names: Sequence[str] | None = None) -> str:
    """A class's name as text: numbers that are whole as whole numbers, true and false in lower case."""
    if names is not None and isinstance(label, int) and 0 <= label < len(names):
        return names[label]
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label).strip()


def words_of(value: Any) -> list[Any]:
    """The words of a cell: a list as it is, a text at its spaces."""
    return [] if value is None else value.split() if isinstance(value, str) else list(value)


def _short(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def words_to_ids(words: Sequence[str], vocabulary: TextVocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a row of words joined by spaces, between start and end tokens, and where each word begins."""
    bos, eos = frame(vocabulary)
    flat, lengths = vocabulary.encode([word if i == 0 else f" {word}" for i, word in enumerate(words)])
    if (lengths == 0).any():
        raise ValueError(f"the word {words[int(np.argmin(lengths))]!r} has no tokens in this vocabulary")
    first = np.cumsum(lengths) - lengths
    if isinstance(vocabulary, Bytes):
        first[1:] += 1  # the space is a token of its own
    return np.concatenate([[bos], flat, [eos]]).astype(np.int64), first + 1


def framed(texts: Sequence[str], vocabulary: TextVocabulary) -> tuple[np.ndarray, list[int]]:
    """The ids of each text between a start and an end token, one after the other, and how many each has."""
    frame_ids = frame(vocabulary)
    flat, lengths = vocabulary.encode(texts)
    ends = np.cumsum(lengths)
    # where one text ends the next begins: the end token is inserted there first
    places = np.stack([ends - lengths, ends], axis=1).reshape(-1)
    values = np.tile(frame_ids, len(texts))
    return np.insert(flat.astype(np.int64), places, values), (lengths + 2).tolist()
