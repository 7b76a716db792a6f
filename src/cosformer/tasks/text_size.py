"""How much text tokens stand for, so that models with different vocabularies can be compared."""

import re

import numpy as np

from cosformer.data.vocabulary import Bytes, Vocabulary, Words

_WORD = re.compile(rb"[^ \t\n\r\f\v]+")


def text_of(vocabulary: Vocabulary, ids: np.ndarray) -> bytes:
    """The text that ``ids`` stand for, an end token as a line end.

    Word by word it is spaced as WikiText's files are: a space before every word and before the line end.
    """
    if isinstance(vocabulary, Words):
        return b"".join(b" \n" if i == vocabulary.eos_id else b" " + vocabulary.words[i].encode() for i in ids.tolist())
    if isinstance(vocabulary, Bytes):
        return np.where(ids == vocabulary.eos_id, ord("\n"), ids.astype(np.int64) - 1).astype(np.uint8).tobytes()
    *lines, rest = np.split(ids, np.flatnonzero(ids == vocabulary.eos_id) + 1)
    return "".join([*(vocabulary.decode(line[:-1]) + "\n" for line in lines), vocabulary.decode(rest)]).encode()


def count_words(text: bytes) -> int:
    """Runs of anything but white space, and every line end: the tokens of a word-level language model."""
    return len(_WORD.findall(text)) + text.count(b"\n")
