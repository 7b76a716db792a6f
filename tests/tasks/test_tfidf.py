"""The TF-IDF baseline: words and word pairs decide; a text without any gets the most frequent class."""

import numpy as np
import pytest

from cosformer.tasks.tfidf import TfIdf


def texts(*kinds: str, rows: int) -> tuple[list[str], np.ndarray]:
    """Row i is kind i mod n among words that say nothing."""
    noise = np.random.default_rng(0).integers(0, 50, (rows, 8))
    rest = [" ".join(f"w{n}" for n in row) for row in noise]
    return [f"{kinds[i % len(kinds)]}. {rest[i]}" for i in range(rows)], np.arange(rows) % len(kinds)


@pytest.mark.parametrize("kinds", [("Schön", "HÄSSLICH", "so-so"), ("not good but bad", "not bad but good")])
def test_words_and_the_order_of_two_words_tell_classes_apart(kinds: tuple[str, ...]) -> None:
    rows, labels = texts(*kinds, rows=180)
    model = TfIdf(rows[:120], labels[:120], len(kinds))
    assert (model.predict(rows[120:]) == labels[120:]).mean() > 0.95


def test_unknown_texts_are_of_the_most_frequent_class() -> None:
    model = TfIdf(["red one", "red two", "red three", "blue one", "red two"], np.array([1, 1, 1, 0, 1]), 2)
    assert model.predict(["", "?!", "never seen"]).tolist() == [1, 1, 1]


def test_rows_of_many_blocks_stay_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = texts("fine", "awful", rows=90)
    whole = TfIdf(rows, labels, 2).predict(rows)
    monkeypatch.setattr("cosformer.tasks.tfidf._ROWS", 7)
    assert (TfIdf(rows, labels, 2).predict(rows) == whole).all() and (whole == labels).all()
