"""Every real file loads with the number of rows it is known to have."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cosformer.data import Dataset, load_dataset


def _rows(dataset: Dataset) -> dict[str, int]:
    return {name: len(split) for name, split in dataset.splits.items()}


@pytest.mark.parametrize(
    ("name", "path", "options", "rows"),
    [
        ("sst2", "sst2", {}, {"train": 67_349, "valid": 872, "test": 1_821}),
        ("qqp", "qqp", {"errors": "replace"}, {"valid": 10_000, "test": 10_000}),
        (
            "qqp",
            "qqp",
            {"errors": "replace", "resplit": [80, 10, 10]},
            {"train": 16_000, "valid": 2_000, "test": 2_000},
        ),
        ("mnli", "mnli", {}, {"valid": 9_815}),
        ("mnli", "mnli/dev_matched.jsonl.xz", {"resplit": [80, 10, 10]}, {"train": 7_851, "valid": 982, "test": 982}),
        ("imdb", "imdb/aclImdb_subset.tar.xz", {}, {"train": 2_500, "test": 1_000}),
        ("text", "imdb/aclImdb_subset.tar.xz", {}, {"train": 2_500, "test": 1_000}),
        pytest.param(
            "text", "imdb/aclImdb_labelled.tar.xz", {}, {"train": 25_000, "test": 25_000}, marks=pytest.mark.slow
        ),
        ("blitzer", "amazon", {}, {"train": 6_400, "valid": 800, "test": 800}),
        ("blitzer", "amazon/kitchen", {}, {"train": 1_600, "valid": 200, "test": 200}),
        pytest.param("image", "cifar10", {}, {"train": 9_000, "valid": 1_000, "test": 1_000}, marks=pytest.mark.slow),
        ("listops", "listops", {}, {"train": 4_000}),
    ],
)
def test_rows(
    real: Callable[[str], Path], name: str, path: str, options: dict[str, object], rows: dict[str, int]
) -> None:
    dataset = load_dataset(name, path=str(real(path)), **options)
    assert _rows(dataset) == rows
    for split in dataset.splits.values():
        if split.labels is not None and dataset.num_classes:
            assert set(np.unique(split.labels).tolist()) == set(range(dataset.num_classes))


@pytest.mark.parametrize("domain", ["books", "dvd", "electronics", "kitchen"])
def test_each_amazon_domain_is_balanced(real: Callable[[str], Path], domain: str) -> None:
    dataset = load_dataset("blitzer", path=str(real("amazon")), domains=[domain])
    labels = np.concatenate([split.labels for split in dataset.splits.values()])  # type: ignore[misc]
    assert np.bincount(labels).tolist() == [1_000, 1_000]


def test_wikitext2_words(real: Callable[[str], Path]) -> None:
    dataset = load_dataset("wikitext2", path=str(real("wikitext-2")))
    assert _rows(dataset) == {"train": 36_718, "valid": 3_760, "test": 4_358}
    tokens = {name: len(split.tokens.flat) for name, split in dataset.splits.items()}
    assert tokens == {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    # 33,278 with <unk> and the end of line; beside them <s>, <pad> and <mask>
    assert dataset.vocab_size == 33_278 + 3
    assert dataset.notes["words outside the vocabulary"] == 0


def test_wikitext103_words_and_subwords(real: Callable[[str], Path]) -> None:
    path = str(real("wikitext-103"))
    words = load_dataset("wikitext103", path=path, vocabulary=str(real("wikitext-103/wiki.valid.tokens.xz")))
    assert {n: len(s.tokens.flat) for n, s in words.splits.items()} == {"valid": 217_646, "test": 245_569}
    pieces = load_dataset("wikitext103", path=path, tokenizer=str(real("tokenizers/roberta-base")))
    assert _rows(pieces) == _rows(words) and pieces.vocab_size == 50_265
    row = np.array(pieces.splits["valid"].tokens[3])
    assert row[-1] == 2 and pieces.vocabulary.decode(row[:6]).startswith(" Homarus gammarus")


def test_damaged_lines_of_the_real_questions_are_named_unless_replaced(real: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match=r"(dev|test).tsv, line \d+: byte \d+ .* is not valid UTF-8; .*errors=replace"):
        load_dataset("qqp", path=str(real("qqp")))
