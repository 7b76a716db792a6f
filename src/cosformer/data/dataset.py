"""The one return type: a data set is splits of memory-mapped token sequences, a vocabulary, and how many classes."""

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from cosformer.data.vocabulary import Vocabulary, vocabulary_from_json

INDEX_FILE = "dataset.json"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Ragged:
    """Sequences of unequal length in one flat array, ``[tokens]`` or, of readings, ``[steps, channels]``: sequence i is
    ``flat[offsets[i]:offsets[i + 1]]``."""

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
    """One part of a data set: ``tokens`` of each row, ``second`` for pairs of documents (or a text to write),
    ``labels`` where there are any, classes or numbers; ``marks``: the classes of a row that may have several, or a tag
    for each token."""

    tokens: Ragged
    second: Ragged | None = None
    labels: np.ndarray | None = None
    marks: Ragged | None = None

    @property
    def documents(self) -> list[Ragged]:
        """The columns of tokens: one, or two."""
        return [self.tokens] if self.second is None else [self.tokens, self.second]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Description:
    """What a builder says about the set it has written; ``notes`` counts what was skipped, replaced or cut."""

    vocabulary: Vocabulary
    num_classes: int | None = None
    max_length: int | None = None
    class_names: tuple[str, ...] | None = None
    image_size: tuple[int, int] | None = None
    notes: Mapping[str, int] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)  # options that were left open, and what was found for them


@dataclass(frozen=True, kw_only=True)
class Dataset(Description):
    """What every loader returns; ``options`` are those it was prepared with."""

    name: str
    splits: Mapping[str, Split]
    folder: Path
    options: Mapping[str, Any]

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    @property
    def pad_id(self) -> int | None:
        """The id that fills up short rows and is masked; None where no id is free for it (pixels)."""
        return self.vocabulary.pad_id

    @property
    def selection_split(self) -> str:
        """The split scored during training, by which the best weights are chosen: ``valid``. Of a set without
        one (IMDB) it is ``test``, which chooses nothing: the last weights are kept."""
        return "valid" if "valid" in self.splits else "test"


class SplitWriter:
    """Appends rows of one split to files, so that memory stays flat whatever the size of the set. ``labels``: whether
    there are some, or "float64" for numbers; ``channels``: of readings, how many numbers a step has."""

    def __init__(
        self,
        folder: Path,
        name: str,
        dtype: Any,
        *,
        pair: bool = False,
        labels: bool | str = True,
        marks: bool = False,
        channels: int | None = None,
    ) -> None:
        self.channels = channels
        self.name, self.dtype, self.has_labels = name, np.dtype(dtype), bool(labels)
        self._label_dtype = labels
        self._files: dict[str, BinaryIO] = {
            c: open(folder / f"{name}.{c}.bin", "wb")  # noqa: SIM115  (Writer closes them)
            for c in ("tokens", *(["second"] if pair else []), *(["marks"] if marks else []))
        }
        self._lengths = {c: array("q") for c in self._files}
        self._labels = array("d" if labels == "float64" else "q")
        self._folder = folder

    def add(self, tokens: Any, label: int | None = None, second: Any = None) -> None:
        """One row."""
        assert ("second" in self._files) == (second is not None)
        self.add_many(tokens, [len(tokens)], None if label is None else [label])
        if second is not None:
            self._append("second", second, [len(second)])

    def add_many(
        self,
        flat: Any,
        lengths: Iterable[int],
        labels: Iterable[float] | None = None,
        second: tuple[Any, Iterable[int]] | None = None,
        marks: tuple[Any, Iterable[int]] | None = None,
    ) -> None:
        """Many rows at once: their concatenated tokens and lengths; likewise ``second`` and ``marks``."""
        assert self.has_labels == (labels is not None)
        self._append("tokens", flat, lengths)
        self._labels.extend(labels or ())  # pyright: ignore[reportArgumentType]
        for column, given in {"second": second, "marks": marks}.items():
            if given is not None:
                self._append(column, *given)

    def _append(self, column: str, flat: Any, lengths: Iterable[int]) -> None:
        self._files[column].write(np.ascontiguousarray(flat, dtype=self.dtype).tobytes())
        self._lengths[column].extend(lengths)

    def close(self) -> dict[str, Any]:
        """Write offsets and labels; returns the entry of this split in the index."""
        rows = len(self._lengths["tokens"])
        sizes = {}
        for column, file in self._files.items():
            file.close()
            offsets = np.zeros(rows + 1, np.int64)
            np.cumsum(np.frombuffer(self._lengths[column], np.int64), out=offsets[1:])
            (self._folder / f"{self.name}.{column}.offsets.bin").write_bytes(offsets.tobytes())
            sizes[column] = int(offsets[-1])
        if self.has_labels:
            (self._folder / f"{self.name}.labels.bin").write_bytes(self._labels.tobytes())
        entry = {"rows": rows, "dtype": self.dtype.name, "labels": self._label_dtype, "sizes": sizes}
        return entry if self.channels is None else entry | {"channels": self.channels}


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

    def split(self, name: str, dtype: Any, **columns: Any) -> SplitWriter:
        """Open the split ``name`` for rows of ``dtype``, with the columns that :class:`SplitWriter` knows."""
        assert name not in self._splits
        self._splits[name] = SplitWriter(self.folder, name, dtype, **columns)
        return self._splits[name]

    def take(self, sizes: dict[str, int], rows: Iterator[tuple[np.ndarray, int]], bar: Any) -> None:
        """For each split as many of the generated ``rows`` (ids below 256, and a label) as ``sizes`` says."""
        for name, size in sizes.items():
            split = self.split(name, np.uint8)
            for _ in range(size):
                split.add(*next(rows))
                bar.update(1)

    def finish(self, name: str, description: Description, key: dict[str, Any]) -> None:
        """Close every split and write the index, last: a folder without one is not a data set."""
        about = {f.name: getattr(description, f.name) for f in fields(description) if f.name != "vocabulary"}
        splits = {s: w.close() for s, w in self._splits.items()}
        saved = description.vocabulary.save(self.folder)
        index = {"name": name, "key": key, **about, "splits": splits, "vocabulary": saved}
        (self.folder / INDEX_FILE).write_text(json.dumps(index, indent=1, ensure_ascii=False), encoding="utf-8")


def open_dataset(folder: Path) -> Dataset:
    """Open a prepared set: reads the index, maps the arrays, loads nothing else."""
    index = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
    splits = {}
    for name, entry in sorted(index["splits"].items(), key=lambda item: _reading_order(item[0])):
        columns = {
            c: Ragged(
                _mapped(folder / f"{name}.{c}.bin", entry["dtype"], size, entry.get("channels")),
                _mapped(folder / f"{name}.{c}.offsets.bin", "int64", entry["rows"] + 1),
            )
            for c, size in entry["sizes"].items()
        }
        dtype = "int64" if entry["labels"] is True else entry["labels"]
        labels = _mapped(folder / f"{name}.labels.bin", dtype, entry["rows"]) if entry["labels"] else None
        splits[name] = Split(columns["tokens"], columns.get("second"), labels, columns.get("marks"))
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
        choices=MappingProxyType(index.get("choices", {})),
        options=MappingProxyType(index["key"]["options"]),
    )


def _reading_order(split: str) -> tuple[int, str]:
    """Train, valid, test, whatever order the files came in."""
    name = split.partition("_")[0]
    return SPLITS.index(name) if name in SPLITS else len(SPLITS), split


def _mapped(path: Path, dtype: str, size: int, channels: int | None = None) -> np.ndarray:
    shape = (size,) if channels is None else (size, channels)
    expected, found = math.prod(shape) * np.dtype(dtype).itemsize, path.stat().st_size
    if found != expected:
        raise ValueError(f"{path} holds {found} bytes, not {expected}: damaged; remove it with 'cosformer data clean'")
    # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r", shape=shape) if size else np.zeros(shape, dtype)
