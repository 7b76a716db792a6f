"""The one return type: a data set is splits of memory-mapped token sequences, a vocabulary, and how many classes."""

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from cosformer.data.vocabulary import Vocabulary, vocabulary_from_json

INDEX_FILE = "dataset.json"


@dataclass(frozen=True)
class Ragged:
    """Sequences of unequal length in one flat array: sequence i is ``flat[offsets[i]:offsets[i + 1]]``."""

    flat: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of {len(self)}")
        index = index % len(self)
        return self.flat[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, int64 [rows]."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Split:
    """One part of a data set: ``tokens`` of each row, ``second`` for pairs of documents, ``labels`` where there are any."""

    tokens: Ragged
    second: Ragged | None = None
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Dataset:
    """What every loader returns. ``notes`` counts what was skipped, replaced or cut while it was prepared; ``options`` are
    those it was prepared with."""

    name: str
    splits: MappingProxyType[str, Split]
    vocabulary: Vocabulary
    num_classes: int | None
    max_length: int | None
    folder: Path
    class_names: tuple[str, ...] | None = None
    image_size: tuple[int, int] | None = None
    notes: MappingProxyType[str, int] = field(default_factory=lambda: MappingProxyType({}))
    options: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    @property
    def pad_id(self) -> int | None:
        """The id that fills up short rows and is masked; None where no id is free for it (pixels)."""
        return self.vocabulary.pad_id

    @property
    def selection_split(self) -> str:
        """The split a model is chosen by: ``valid`` where there is one, else ``test`` (IMDB, as in the recipes)."""
        return "valid" if "valid" in self.splits else "test"


@dataclass(frozen=True)
class Description:
    """What a builder says about the set it has written."""

    vocabulary: Vocabulary
    num_classes: int | None = None
    max_length: int | None = None
    class_names: tuple[str, ...] | None = None
    image_size: tuple[int, int] | None = None
    notes: dict[str, int] = field(default_factory=dict)


class SplitWriter:
    """Appends rows of one split to files, so that memory stays flat whatever the size of the set."""

    def __init__(self, folder: Path, name: str, dtype: Any, *, pair: bool, labels: bool) -> None:
        self.name, self.dtype, self.pair, self.has_labels = name, np.dtype(dtype), pair, labels
        self._columns = ("tokens", "second") if pair else ("tokens",)
        self._files: dict[str, BinaryIO] = {
            c: open(folder / f"{name}.{c}.bin", "wb")  # noqa: SIM115  (Writer closes them)
            for c in self._columns
        }
        self._lengths = {c: array("q") for c in self._columns}
        self._labels = array("q")
        self._folder = folder

    def add(self, tokens: Any, label: int | None = None, second: Any = None) -> None:
        """One row."""
        row = np.asarray(tokens, dtype=self.dtype)
        self.add_many(
            row,
            [len(row)],
            None if label is None else [label],
            None if second is None else np.asarray(second, dtype=self.dtype),
            None if second is None else [len(second)],
        )

    def add_many(
        self,
        flat: np.ndarray,
        lengths: Iterable[int],
        labels: Iterable[int] | None = None,
        second_flat: np.ndarray | None = None,
        second_lengths: Iterable[int] | None = None,
    ) -> None:
        """Many rows at once: their tokens one after the other, and how long each is."""
        assert self.has_labels == (labels is not None) and self.pair == (second_flat is not None)
        self._files["tokens"].write(np.ascontiguousarray(flat, dtype=self.dtype).tobytes())
        self._lengths["tokens"].extend(lengths)
        if labels is not None:
            self._labels.extend(labels)
        if second_flat is not None and second_lengths is not None:
            self._files["second"].write(np.ascontiguousarray(second_flat, dtype=self.dtype).tobytes())
            self._lengths["second"].extend(second_lengths)

    def close(self) -> dict[str, Any]:
        """Write offsets and labels; returns the entry of this split in the index."""
        rows = len(self._lengths["tokens"])
        sizes = {}
        for column in self._columns:
            self._files[column].close()
            offsets = np.zeros(rows + 1, np.int64)
            np.cumsum(np.frombuffer(self._lengths[column], np.int64), out=offsets[1:])
            (self._folder / f"{self.name}.{column}.offsets.bin").write_bytes(offsets.tobytes())
            sizes[column] = int(offsets[-1])
        if self.has_labels:
            (self._folder / f"{self.name}.labels.bin").write_bytes(self._labels.tobytes())
        return {"rows": rows, "dtype": self.dtype.name, "labels": self.has_labels, "sizes": sizes}


class Writer:
    """Writes a data set into a folder, split by split."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._splits: dict[str, SplitWriter] = {}

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        for split in self._splits.values():
            for file in split._files.values():
                file.close()

    def split(self, name: str, dtype: Any, *, pair: bool = False, labels: bool = True) -> SplitWriter:
        """Open the split ``name`` for rows of ``dtype``."""
        assert name not in self._splits
        self._splits[name] = SplitWriter(self.folder, name, dtype, pair=pair, labels=labels)
        return self._splits[name]

    def finish(self, name: str, description: Description, key: dict[str, Any]) -> None:
        """Close every split and write the index, last: a folder without one is not a data set."""
        index = {
            "name": name,
            "key": key,
            "num_classes": description.num_classes,
            "max_length": description.max_length,
            "class_names": description.class_names,
            "image_size": description.image_size,
            "notes": description.notes,
            "splits": {s: w.close() for s, w in self._splits.items()},
            "vocabulary": description.vocabulary.save(self.folder),
        }
        (self.folder / INDEX_FILE).write_text(json.dumps(index, indent=1, ensure_ascii=False), encoding="utf-8")


def open_dataset(folder: Path) -> Dataset:
    """Open a prepared set: reads the index, maps the arrays, loads nothing else."""
    index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
    splits = {}
    for name, entry in sorted(index["splits"].items(), key=lambda item: _reading_order(item[0])):
        columns = {
            c: Ragged(
                _mapped(folder / f"{name}.{c}.bin", entry["dtype"], size),
                _mapped(folder / f"{name}.{c}.offsets.bin", "int64", entry["rows"] + 1),
            )
            for c, size in entry["sizes"].items()
        }
        labels = _mapped(folder / f"{name}.labels.bin", "int64", entry["rows"]) if entry["labels"] else None
        splits[name] = Split(columns["tokens"], columns.get("second"), labels)
    return Dataset(
        name=index["name"],
        splits=MappingProxyType(splits),
        vocabulary=vocabulary_from_json(index["vocabulary"], folder),
        num_classes=index["num_classes"],
        max_length=index["max_length"],
        folder=folder,
        class_names=tuple(index["class_names"]) if index["class_names"] else None,
        image_size=tuple(index["image_size"]) if index["image_size"] else None,
        notes=MappingProxyType(index["notes"]),
        options=MappingProxyType(index["key"]["options"]),
    )


def _reading_order(split: str) -> tuple[int, str]:
    """Train, valid, test, whatever order the files came in."""
    order = ("train", "valid", "test")
    return order.index(split.partition("_")[0]) if split.partition("_")[0] in order else len(order), split


def _mapped(path: Path, dtype: str, size: int) -> np.ndarray:
    expected, found = size * np.dtype(dtype).itemsize, path.stat().st_size
    if found != expected:
        raise ValueError(f"{path} holds {found} bytes, not {expected}: damaged; remove it with 'cosformer data clean'")
    # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r", shape=(size,)) if size else np.zeros(0, dtype)
