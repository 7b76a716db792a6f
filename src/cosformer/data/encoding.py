"""Text rows to ids: `<s> A </s>`, `<s> A </s> </s> B </s>`, cut to a length; and sets that are made of such rows."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cosformer.data.cache import prepare
from cosformer.data.dataset import SPLITS, Dataset, Description, Writer
from cosformer.data.download import locate
from cosformer.data.subwords import TOKENIZER_FILES, batched, is_learnt, text_vocabulary
from cosformer.data.vocabulary import TextVocabulary

Row = tuple[str, str | None, int | None]  # first text, second text of a pair, label
_BATCH = 10_000


def prepare_rows(
    name: str,
    path: str | None,
    read: Callable[[Path], tuple[dict[str, list[Row]], dict[str, int]]],
    classes: tuple[str, ...],
    *,
    tokenizer: str,
    max_length: int,
    **options: Any,
) -> Dataset:
    """The set ``name`` of labelled texts, from the download of that name. ``read``: its files to the rows of each
    split, of which all or none have labels, and what else is to be noted. ``options``: what else the result depends on.
    """
    source = locate(name, name, path)
    key = {"source": source.identity, "tokenizer": tokenizer_identity(tokenizer), "max_length": max_length, **options}

    def build(writer: Writer) -> Description:
        splits, notes = read(source.files())
        train = splits.get("train", [])
        if is_learnt(tokenizer) and not train:
            raise ValueError(
                f"tokenizer={tokenizer!r} is learnt from the train split, and {name!r} has none here; give a folder"
            )
        vocabulary = text_vocabulary(
            tokenizer, lambda: (text for a, b, _ in train for text in (a, b) if text is not None)
        )
        cut = 0
        for split, rows in splits.items():
            labels = all(label is not None for _, _, label in rows)
            out = writer.split(split, smallest_dtype(vocabulary.size), labels=labels)
            cut += sum(add_rows(out, batch, vocabulary, max_length) for batch in batched(rows, _BATCH))
        return Description(vocabulary, len(classes), max_length, classes, notes=notes | {"rows cut": cut})

    return prepare(name, key, build)


def tokenizer_identity(tokenizer: str) -> Any:
    """What the cache key holds about a ``tokenizer`` option: its name, and for a folder what is in the tokenizer's
    files. Where the folder is and what else it holds does not matter: runs with the same tokenizer share the prepared
    data."""
    folder = Path(tokenizer).expanduser()
    if tokenizer in ("bytes", "words") or not folder.is_dir():
        return tokenizer
    files = [folder / (name + packed) for name in TOKENIZER_FILES for packed in ("", ".xz")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


def smallest_dtype(vocab_size: int) -> Any:
    """uint16 where every id fits, else int32."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def add_rows(out: Any, rows: Sequence[Row], vocabulary: TextVocabulary, max_length: int) -> int:
    """Encode one batch of rows into an open split; returns how many were cut."""
    first = _separate(*vocabulary.encode([a for a, _, _ in rows]))
    second = _separate(*vocabulary.encode([b or "" for _, b, _ in rows]))
    cut = 0
    sequences = []
    for a, b, (_, text, _) in zip(first, second, rows, strict=True):
        sequence, was_cut = with_specials(a, None if text is None else b, vocabulary, max_length)
        sequences.append(sequence)
        cut += was_cut
    labels = [label for _, _, label in rows] if out.has_labels else None
    flat = np.concatenate(sequences) if sequences else np.zeros(0, np.int64)
    out.add_many(flat, [len(s) for s in sequences], labels)
    return cut


def _separate(flat: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []


def frame(vocabulary: TextVocabulary) -> tuple[int, int]:
    """The start and the end token, which rows of text need."""
    bos, eos = vocabulary.bos_id, vocabulary.eos_id
    if bos is None or eos is None:
        raise ValueError("this tokenizer has no start and end tokens (<s>, </s> or [CLS], [SEP]), which the rows need")
    return bos, eos


def with_specials(
    a: np.ndarray, b: np.ndarray | None, vocabulary: TextVocabulary, max_length: int
) -> tuple[np.ndarray, bool]:
    """The row of one text or of a pair, and whether it had to be cut; of a pair the longer text gives way first."""
    bos, eos = frame(vocabulary)
    between = [] if b is None else [eos] * (1 + vocabulary.double_separator)
    room = max_length - 2 - len(between)
    if room < 2:
        raise ValueError(f"max_length={max_length} leaves no room for text beside the special tokens; at least 6")
    length_b = 0 if b is None else len(b)
    cut = len(a) + length_b > room
    if b is None:
        return np.concatenate([[bos], a[:room], [eos]]), cut
    keep_b = min(length_b, max(room // 2, room - len(a)))
    return np.concatenate([[bos], a[: room - keep_b], between, b[:keep_b], [eos]]), cut


def split_anew(rows: Sequence[Row], shares: Sequence[float], seed: int) -> dict[str, list[Row]]:
    """The rows of train, valid and test, :func:`dealt` by three ``shares``."""
    return {split: [rows[i] for i in part] for split, part in zip(SPLITS, dealt(len(rows), shares, seed), strict=True)}


def dealt(count: int, shares: Sequence[float], seed: int) -> list[np.ndarray]:
    """Row numbers of each part, in file order: seeded, disjoint; later parts are rounded, the first takes the rest."""
    if any(share < 0 for share in shares) or sum(shares) <= 0:
        raise ValueError(f"shares {tuple(shares)} must not be negative, and not all 0")
    sizes = [round(count * share / sum(shares)) for share in shares[1:]]
    order = np.random.default_rng(seed).permutation(count)
    bounds = np.cumsum([0, count - sum(sizes), *sizes])
    return [np.sort(order[bounds[i] : bounds[i + 1]]) for i in range(len(shares))]
