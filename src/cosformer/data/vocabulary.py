"""Vocabularies: what an id means. Each turns text into ids where it can, ids into text, and is saved with its data set."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np


class Vocabulary(Protocol):
    """The ids of special tokens are None where a vocabulary has no such token."""

    size: int
    pad_id: int | None
    bos_id: int | None
    eos_id: int | None
    mask_id: int | None
    unk_id: int | None

    def decode(self, ids: np.ndarray) -> str:
        """Readable text of a row."""
        ...

    def save(self, folder: Path) -> dict[str, Any]:
        """Write what is too large for the index into ``folder``; returns the index entry."""
        ...


class TextVocabulary(Vocabulary, Protocol):
    """A vocabulary that encodes text."""

    double_separator: bool  # pairs read `<s> A </s> </s> B </s>` (RoBERTa), not `[CLS] A [SEP] B [SEP]` (BERT)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts one after the other, without special tokens, and how many each text has."""
        ...


class Bytes:
    """Bytes as ids 1..256, 0 for padding; with ``special`` also ``<s>`` 257, ``</s>`` 258, ``<mask>`` 259."""

    pad_id: int | None = 0
    unk_id: int | None = None
    double_separator = True

    def __init__(self, special: bool) -> None:
        self.special = special
        self.size = 260 if special else 257
        self.bos_id, self.eos_id, self.mask_id = (257, 258, 259) if special else (None, None, None)

    @staticmethod
    def ids(raw: bytes) -> np.ndarray:
        """The ids of ``raw``, uint16."""
        return np.frombuffer(raw, np.uint8).astype(np.uint16) + np.uint16(1)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        raw = [text.encode("utf-8") for text in texts]
        return self.ids(b"".join(raw)), np.array([len(r) for r in raw], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        names = {0: b"<pad>", 257: b"<s>", 258: b"</s>", 259: b"<mask>"}
        return b"".join(names.get(int(i)) or bytes([int(i) - 1]) for i in ids).decode("utf-8", "replace")

    def save(self, folder: Path) -> dict[str, Any]:
        return {"kind": "bytes", "special": self.special}


class Words:
    """A list of words; id = place in the list. Special tokens are found by their names."""

    _FILE: ClassVar[str] = "words.json"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.size = len(self.words)
        self.index = {word: i for i, word in enumerate(self.words)}
        self.pad_id, self.bos_id = self.index.get("<pad>"), self.index.get("<s>")
        self.eos_id, self.mask_id, self.unk_id = (self.index.get(w) for w in ("</s>", "<mask>", "<unk>"))

    def decode(self, ids: np.ndarray) -> str:
        return " ".join(self.words[int(i)] for i in ids)

    def save(self, folder: Path) -> dict[str, Any]:
        (folder / self._FILE).write_text(json.dumps(self.words, ensure_ascii=False), encoding="utf-8")
        return {"kind": "words"}


class Pixels:
    """Grey values 0..255. None is padding, as every value is data; ``lra_padding`` masks value 0, as Long Range Arena does."""

    size = 256
    bos_id: int | None = None
    eos_id: int | None = None
    mask_id: int | None = None
    unk_id: int | None = None

    def __init__(self, lra_padding: bool) -> None:
        self.pad_id: int | None = 0 if lra_padding else None

    def decode(self, ids: np.ndarray) -> str:
        return " ".join(str(int(i)) for i in ids)

    def save(self, folder: Path) -> dict[str, Any]:
        return {"kind": "pixels", "lra_padding": self.pad_id == 0}


def vocabulary_from_json(entry: dict[str, Any], folder: Path) -> Vocabulary:
    """The vocabulary that :meth:`Vocabulary.save` described; ValueError says what is wrong with the ``entry`` or its file."""
    kind = entry.get("kind")
    try:
        if kind == "bytes":
            return Bytes(entry["special"])
        if kind == "pixels":
            return Pixels(entry["lra_padding"])
        if kind == "words":
            return Words(json.loads((folder / Words._FILE).read_text(encoding="utf-8")))
    except (KeyError, TypeError, OSError, RecursionError) as error:
        raise ValueError(f"the vocabulary of kind {kind!r} cannot be read ({type(error).__name__}: {error})") from error
    if kind != "subwords":
        raise ValueError(f"a vocabulary of kind {kind!r} is unknown; known: bytes, pixels, words, subwords")
    from cosformer.data.subwords import Subwords

    return Subwords.load(folder)
