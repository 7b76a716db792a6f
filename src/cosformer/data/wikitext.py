"""WikiText-2 and WikiText-103 as words of the official vocabulary, bytes, or byte-level BPE. One row per line."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from cosformer.data.archive import matching, text_lines
from cosformer.data.cache import fingerprint, prepare
from cosformer.data.dataset import Dataset, Description, SplitWriter, Writer
from cosformer.data.download import locate
from cosformer.data.encoding import smallest_dtype, tokenizer_identity
from cosformer.data.subwords import batched, text_vocabulary
from cosformer.data.vocabulary import TextVocabulary, Words
from cosformer.terminal import progress_bar

_FILE = re.compile(r"(?:^|/)wiki\.(train|valid|test)\.(tokens|raw)$")
_BATCH = 16_384  # lines encoded at once


def wikitext2(*, path: str | None = None, tokenizer: str = "words", vocabulary: str | None = None) -> Dataset:
    """WikiText-2. ``tokenizer``: "words"; "bytes"; "bpe:N", a byte-level BPE of N entries learnt from the train split,
    "bpe-lower:N" one in lower-case; or a folder with a tokenizer's files. ``vocabulary`` is a text file whose words
    replace those of the train split.
    """
    return _wikitext("wikitext2", path, tokenizer, vocabulary)


def wikitext103(*, path: str | None = None, tokenizer: str = "words", vocabulary: str | None = None) -> Dataset:
    """WikiText-103, with the options of :func:`wikitext2`."""
    return _wikitext("wikitext103", path, tokenizer, vocabulary)


def _wikitext(name: str, path: str | None, tokenizer: str, vocabulary: str | None) -> Dataset:
    words = tokenizer == "words"
    if vocabulary is not None and not words:
        raise ValueError(f"vocabulary={vocabulary!r} goes with tokenizer='words', not with {tokenizer!r}")
    source = locate(name, name if words else f"{name}-raw", path)
    options = {
        "source": source.identity,
        "tokenizer": tokenizer_identity(tokenizer),
        "vocabulary": None if vocabulary is None else fingerprint(Path(vocabulary)),
    }

    def build(writer: Writer) -> Description:
        files = source.files()
        if words:
            known = word_vocabulary(
                files if vocabulary is None else Path(vocabulary), whole_file=vocabulary is not None
            )
            unknown = _write_words(writer, files, known)
            return Description(known, notes={"words outside the vocabulary": unknown})
        subwords = text_vocabulary(tokenizer, partial(_train_lines, files))
        for split, lines in _files(files):
            write_lines(writer, split, lines, subwords)
        return Description(subwords)

    return prepare(name, options, build)


def word_vocabulary(path: Path, *, whole_file: bool = False) -> Words:
    """``<s> <pad> </s> <unk>``, the words of the train split (of all of ``path`` with ``whole_file``) by falling
    frequency, ``<mask>``. Frequent words first is what adaptive softmax needs; equals are sorted by spelling.
    """
    counts: Counter[str] = Counter()
    for name, lines in _files(path, any_file=whole_file):
        if whole_file or name == "train":
            for line in lines:
                counts.update(line.split())
    if not counts:
        raise ValueError(
            f"{path} holds no wiki.train.tokens, from which the vocabulary comes; give the option vocabulary=FILE, "
            "or another tokenizer"
        )
    special = ("<s>", "<pad>", "</s>", "<unk>")
    ranked = sorted((w for w in counts if w not in (*special, "<mask>")), key=lambda w: (-counts[w], w))
    return Words([*special, *ranked, "<mask>"])


def _write_words(writer: Writer, path: Path, known: Words) -> int:
    assert known.unk_id is not None and known.eos_id is not None
    index, unk, eos, unknown = known.index, known.unk_id, known.eos_id, 0
    for name, lines in _files(path):
        split = writer.split(name, smallest_dtype(known.size), labels=False)
        for batch in batched(lines, _BATCH):
            rows = [[*(index.get(word, -1) for word in line.split()), eos] for line in batch]
            flat = np.fromiter((i for row in rows for i in row), np.int64)
            unknown += int((flat < 0).sum())
            flat[flat < 0] = unk
            split.add_many(flat, [len(row) for row in rows])
    return unknown


def _train_lines(path: Path) -> Iterator[str]:
    for name, lines in _files(path):
        if name == "train":
            yield from lines
            return
    raise ValueError(f"{path} holds no wiki.train file to learn a BPE from; give the folder of a tokenizer instead")


def write_lines(writer: Writer, name: str, lines: Iterator[str], vocabulary: TextVocabulary) -> None:
    """Write the split ``name``: each line as its ids and an end token."""
    split = writer.split(name, smallest_dtype(vocabulary.size), labels=False)
    # the library encodes without holding Python's lock: the next lines are read and the last ones written meanwhile
    with progress_bar(f"encoding {name}", None, "lines") as bar, ThreadPoolExecutor(1) as encoder:
        pending: Future[tuple[np.ndarray, np.ndarray]] | None = None
        for batch in batched(lines, _BATCH):
            following = encoder.submit(vocabulary.encode, batch)
            if pending is not None:
                _add_lines(split, *pending.result(), vocabulary)
            pending = following
            bar.update(len(batch))
        if pending is not None:
            _add_lines(split, *pending.result(), vocabulary)


def _add_lines(split: SplitWriter, ids: np.ndarray, lengths: np.ndarray, vocabulary: TextVocabulary) -> None:
    if vocabulary.eos_id is None:
        raise ValueError("this tokenizer has no end token (</s>, [SEP] or <|endoftext|>), which ends each line")
    lengths = lengths + 1
    flat = np.full(int(lengths.sum()), vocabulary.eos_id, split.dtype)
    # the ends keep the fill value; the rest is copied in one go
    inner = np.ones(len(flat), bool)
    inner[np.cumsum(lengths) - 1] = False
    flat[inner] = ids
    split.add_many(flat, lengths.tolist())


def _files(path: Path, *, any_file: bool = False) -> Iterator[tuple[str, Iterator[str]]]:
    """(split, its lines) of each file of the set; with ``any_file`` of every file there is."""
    pattern = re.compile("(.*)") if any_file else _FILE
    for match, stream in matching(path, pattern, "no file named wiki.train.tokens, wiki.valid.raw or the like"):
        yield match[1], (line for _, line in text_lines(stream, match.string))
