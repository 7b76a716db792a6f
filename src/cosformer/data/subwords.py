"""Subword vocabularies of the tokenizers library: byte-level BPE (GPT-2, RoBERTa, or trained here), WordPiece."""

import itertools
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cosformer.data.vocabulary import Bytes, TextVocabulary
from cosformer.extras import require

# the names that models give their special tokens, most common first
_NAMES = {
    "pad_id": ("<pad>", "[PAD]"),
    "bos_id": ("<s>", "[CLS]", "<|endoftext|>"),
    "eos_id": ("</s>", "[SEP]", "<|endoftext|>"),
    "mask_id": ("<mask>", "[MASK]"),
    "unk_id": ("<unk>", "[UNK]"),
}
_FILE = "tokenizer.json"
TOKENIZER_FILES = (_FILE, "vocab.json", "merges.txt", "vocab.txt")  # each may have .xz at the end
T = TypeVar("T")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


class Subwords(TextVocabulary):
    """A ``tokenizers.Tokenizer``, used without its own special-token templates, truncation and padding: the data
    decides these."""

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.size: int = tokenizer.get_vocab_size()
        for attribute, names in _NAMES.items():
            ids = (tokenizer.token_to_id(name) for name in names)
            setattr(self, attribute, next((i for i in ids if i is not None), None))
        self.double_separator = tokenizer.token_to_id("[SEP]") is None

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = itertools.chain.from_iterable(e.ids for e in encoded)
        return np.fromiter(ids, np.int32), np.array([len(e) for e in encoded], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def save(self, folder: Path) -> dict[str, Any]:
        self.tokenizer.save(str(folder / _FILE), pretty=False)
        return {"kind": "subwords"}

    @classmethod
    def load(cls, folder: Path) -> "Subwords":
        """From a folder with ``tokenizer.json``, or ``vocab.json`` and ``merges.txt`` (byte-level BPE), or
        ``vocab.txt`` (WordPiece, lower-cased); each may be xz-compressed."""
        tokenizers = require("data", "tokenizers")
        if (text := _read(folder / _FILE)) is not None:
            return cls(tokenizers.Tokenizer.from_str(text))
        vocab, merges, wordpiece = (_read(folder / f) for f in ("vocab.json", "merges.txt", "vocab.txt"))
        if vocab is not None and merges is not None:
            return cls(_byte_level(json.loads(vocab), _merge_pairs(merges, folder)))
        if wordpiece is not None:
            return cls(_wordpiece({word: i for i, word in enumerate(wordpiece.splitlines())}))
        raise FileNotFoundError(
            f"{folder} contains no tokenizer: expected tokenizer.json, or vocab.json and merges.txt, or vocab.txt"
        )

    @classmethod
    def train(cls, lines: Iterable[str], size: int, *, lower: bool = False) -> "Subwords":
        """A byte-level BPE of ``size`` entries (RoBERTa's special tokens first) learnt from ``lines``; ``lower``: it
        makes every text lower-case first."""
        require("data", "tokenizers")
        from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

        least = 256 + len(SPECIAL)
        if size < least:
            raise ValueError(f"a byte-level BPE of {size} entries is too small: bytes and special tokens take {least}")
        tokenizer = require("data", "tokenizers").Tokenizer(models.BPE())
        if lower:
            tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines, trainer)
        return cls(tokenizer)


def text_vocabulary(tokenizer: str, lines: Callable[[], Iterable[str]]) -> TextVocabulary:
    """``"bytes"``; ``"bpe:N"``, a BPE of N entries learnt from ``lines``, the texts of the train split, or
    ``"bpe-lower:N"``, one that reads everything as lower-case; or the folder of a tokenizer's files."""
    if tokenizer == "bytes":
        return Bytes(special=True)
    if is_learnt(tokenizer):
        kind, _, size = tokenizer.partition(":")
        if not size.isdigit():
            raise ValueError(f"tokenizer={tokenizer!r}; after '{kind}:' comes a number of entries, as in '{kind}:8000'")
        return Subwords.train(lines(), int(size), lower=kind == "bpe-lower")
    if not Path(tokenizer).expanduser().is_dir():
        raise ValueError(
            f"tokenizer={tokenizer!r} is neither 'bytes', 'bpe:N', 'bpe-lower:N' nor a folder with a tokenizer's files"
        )
    return Subwords.load(Path(tokenizer).expanduser())


def is_learnt(tokenizer: str) -> bool:
    """Whether the option names a BPE that is learnt from the data."""
    return tokenizer.startswith(("bpe:", "bpe-lower:"))


def _byte_level(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in (*SPECIAL, "<|endoftext|>") if t in vocab]
    )
    return tokenizer


def _wordpiece(vocab: dict[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _merge_pairs(text: str, folder: Path) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line or line.startswith("#version"):
            continue
        left, space, right = line.rstrip("\r").partition(" ")
        if not space or " " in right:
            raise ValueError(f"{folder / 'merges.txt'}, line {number}: {line!r} is not two tokens with a space between")
        pairs.append((left, right))
    return pairs


def _read(path: Path) -> str | None:
    """The text of ``path``, or of ``path.xz``; None where there is neither."""
    if path.is_file():
        return path.read_text(encoding="utf-8")
    packed = path.with_name(path.name + ".xz")
    return lzma.open(packed, "rt", encoding="utf-8").read() if packed.is_file() else None


def batched(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of up to ``size`` rows."""
    rest = iter(rows)
    while batch := list(itertools.islice(rest, size)):
        yield batch
