"""IMDB reviews from the official tar or its folder: as bytes (Long Range Arena's Text) and for fine-tuning."""

import re
from pathlib import Path

import numpy as np

from cosformer.data.archive import decoded, matching
from cosformer.data.cache import prepare
from cosformer.data.dataset import Dataset, Description, Writer
from cosformer.data.download import locate
from cosformer.data.encoding import Row, prepare_rows
from cosformer.data.vocabulary import Bytes

CLASSES = ("negative", "positive")
_REVIEW = re.compile(r"(?:^|/)(train|test)/(neg|pos)/(\d+)_(\d+)\.txt$")


def text(*, path: str | None = None, max_length: int = 4000) -> Dataset:
    """Whole reviews as bytes + 1 (0 pads), cut at ``max_length``; splits train and test, as the benchmark has them."""
    source = locate("text", "imdb", path)

    def build(writer: Writer) -> Description:
        cut = 0
        for split, reviews in read_reviews(source.files()).items():
            out = writer.split(split, np.uint16)
            for raw, label in reviews:
                cut += len(raw) > max_length
                out.add(Bytes.ids(raw[:max_length]), label)
        return Description(Bytes(special=False), 2, max_length, CLASSES, notes={"rows cut": cut})

    return prepare("text", {"source": source.identity, "max_length": max_length}, build)


def imdb(
    *, path: str | None = None, tokenizer: str = "bytes", max_length: int = 512, errors: str = "strict"
) -> Dataset:
    """The first line of each review as ``<s> A </s>``, cut at ``max_length``; ``tokenizer`` as :func:`text_vocabulary`
    reads it."""

    def read(files: Path) -> tuple[dict[str, list[Row]], dict[str, int]]:
        return {
            split: [
                (decoded(raw.partition(b"\n")[0], f"{split} review {i}", errors), None, label)
                for i, (raw, label) in enumerate(reviews)
            ]
            for split, reviews in read_reviews(files).items()
        }, {}

    return prepare_rows("imdb", path, read, CLASSES, tokenizer=tokenizer, max_length=max_length, errors=errors)


def read_reviews(path: Path) -> dict[str, list[tuple[bytes, int]]]:
    """(raw bytes, 1 = positive) of each review of ``train`` and ``test``, ordered by class and number."""
    found: dict[str, list[tuple[int, int, bytes]]] = {"train": [], "test": []}
    for match, stream in matching(path, _REVIEW, "no reviews named train/pos/<id>_<rating>.txt or the like"):
        split, polarity, number, _ = match.groups()
        found[split].append((int(polarity == "pos"), int(number), stream.read()))
    for split, reviews in found.items():
        if not reviews:
            raise ValueError(f"{path} holds no reviews named {split}/pos/<id>_<rating>.txt or {split}/neg/...")
    return {split: [(raw, label) for label, _, raw in sorted(reviews)] for split, reviews in found.items()}
