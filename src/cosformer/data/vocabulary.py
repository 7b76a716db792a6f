"""Vocabularies map text to ids and back; each is saved with its data set."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

SPECIAL_NAMES = ("<pad>", "<s>", "</s>", "<mask>")


class Vocabulary:
    """The meaning of ids. Those of special tokens are None where a vocabulary has no such token."""

    size: int
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    mask_id: int | None = None
    unk_id: int | None = None

    def decode(self, ids: np.ndarray) -> str:
        """Readable text of a row."""
        raise NotImplementedError

    def save(self, folder: Path) -> dict[str, Any]:
        """Write what is too large for the index into ``folder``; returns the index entry."""
        raise NotImplementedError


class TextVocabulary(Vocabulary):
    """A vocabulary that encodes text."""

    double_separator = True  # pairs read `<s> A </s> </s> B </s>` (RoBERTa), not `[CLS] A [SEP] B [SEP]` (BERT)

    def encode(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts one after the other, without special tokens, and how many each text has."""
        raise NotImplementedError

    def _append_special(self, count: int) -> None:
        """SPECIAL_NAMES get the ids from ``count`` on."""
        self.size = count + len(SPECIAL_NAMES)
        self.pad_id, self.bos_id, self.eos_id, self.mask_id = range(count, self.size)


class Bytes(TextVocabulary):
    """Bytes as ids 1..256, 0 for padding; with ``special`` also ``<s>`` 257, ``</s>`` 258, ``<mask>`` 259."""

    pad_id: int | None = 0

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


class Words(Vocabulary):
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


class Pixels(Vocabulary):
    """Grey values 0..255. No value pads, as all are data; ``lra_padding`` masks 0, as Long Range Arena does."""

    size = 256

    def __init__(self, lra_padding: bool) -> None:
        self.pad_id = 0 if lra_padding else None

    def decode(self, ids: np.ndarray) -> str:
        return " ".join(str(int(i)) for i in ids)

    def save(self, folder: Path) -> dict[str, Any]:
        return {"kind": "pixels", "lra_padding": self.pad_id == 0}


class Letters(TextVocabulary):
    """The letters of an alphabet (DNA, RNA, protein), then ``<pad>``, ``<s>``, ``</s>``, ``<mask>``."""

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self.index = {letter: i for i, letter in enumerate(alphabet)}
        self._append_special(len(alphabet))

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        for text in texts:
            if strange := self.strange(text):
                raise ValueError(f"the letter {strange!r} is not in the alphabet {self.alphabet}")
        ids = [[self.index[letter] for letter in text.upper()] for text in texts]
        return np.array([i for row in ids for i in row], np.int64), np.array([len(row) for row in ids], np.int64)

    def strange(self, text: str) -> str | None:
        """A letter of ``text`` that is not in the alphabet; lower case is read as upper case."""
        return next(iter(sorted(set(text.upper()) - self.index.keys())), None)

    def decode(self, ids: np.ndarray) -> str:
        names = [*self.alphabet, *SPECIAL_NAMES]
        return "".join(names[int(i)] for i in ids)

    def save(self, folder: Path) -> dict[str, Any]:
        return {"kind": "letters", "alphabet": self.alphabet}


class Ids(TextVocabulary):
    """``count`` whole numbers from 0, then ``<pad>``, ``<s>``, ``</s>``, ``<mask>``. A row is an array."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._append_special(count)

    def encode(self, texts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.array([len(row) for row in texts], np.int64)
        return np.concatenate([np.zeros(0, np.int64), *texts]), lengths

    def decode(self, ids: np.ndarray) -> str:
        return " ".join(str(int(i)) if i < self.count else SPECIAL_NAMES[int(i) - self.count] for i in ids)

    def save(self, folder: Path) -> dict[str, Any]:
        return {"kind": "ids", "count": self.count}


class Channels(Vocabulary):
    """The channels of a series: their names, and mean and scale in the training data. It has no token ids."""

    size = 1

    def __init__(self, names: Sequence[str], mean: Sequence[float], scale: Sequence[float]) -> None:
        self.names, self.mean, self.scale = list(names), list(mean), list(scale)

    def decode(self, ids: np.ndarray) -> str:
        return "\n".join(", ".join(f"{value:g}" for value in step) for step in ids)

    def save(self, folder: Path) -> dict[str, Any]:
        return {"kind": "channels", "names": self.names, "mean": self.mean, "scale": self.scale}


# what the index keeps of them is what they are built with
_KINDS: dict[str, type[Vocabulary]] = {
    "bytes": Bytes,
    "pixels": Pixels,
    "letters": Letters,
    "ids": Ids,
    "channels": Channels,
}


def vocabulary_from_json(entry: dict[str, Any], folder: Path) -> Vocabulary:
    """The vocabulary that :meth:`Vocabulary.save` described; ValueError if the ``entry`` or its file is invalid."""
    kind = entry.get("kind")
    try:
        if kind in _KINDS:
            return _KINDS[kind](**{name: value for name, value in entry.items() if name != "kind"})
        if kind == "words":
            return Words(json.loads((folder / Words._FILE).read_text(encoding="utf-8")))
    except (KeyError, TypeError, OSError, RecursionError) as error:
        raise ValueError(f"the vocabulary of kind {kind!r} cannot be read ({type(error).__name__}: {error})") from error
    if kind != "subwords":
        raise ValueError(f"a vocabulary of kind {kind!r} is unknown; known: {', '.join(_KINDS)}, words, subwords")
    from cosformer.data.subwords import Subwords

    return Subwords.load(folder)
