"""Recall: every key comes twice, with the same value behind it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cosformer.data.recall import recall
from cosformer.experiment import DataConfig, ModelConfig
from cosformer.tasks.recall import Recall

pytestmark = pytest.mark.usefixtures("data_home")
SMALL = {"length": 32, "pairs": 4, "keys": 16, "values": 8, "train": 50, "valid": 10, "test": 20}


def test_every_pair_comes_again_somewhere_behind_all_pairs() -> None:
    data = recall(**SMALL)
    assert data.vocab_size == 1 + 16 + 8 and data.max_length == 32
    places = []
    for row in data.splits["train"].tokens:
        pairs = {int(row[i]): int(row[i + 1]) for i in range(0, 8, 2)}
        assert len(pairs) == len(set(pairs.values())) == 4
        assert all(1 <= key <= 16 < value <= 24 for key, value in pairs.items())
        again = np.flatnonzero(row[8:]) + 8
        assert len(again) == 8 and {int(row[i]): int(row[i + 1]) for i in again[::2]} == pairs
        places += again[::2].tolist()
    assert set(places) == set(range(8, 32, 2))


def test_splits_differ_and_a_seed_gives_the_same_rows() -> None:
    first, again, other = recall(**SMALL), recall(**SMALL), recall(**SMALL, seed=1)
    assert np.array_equal(first.splits["test"].tokens.flat, again.splits["test"].tokens.flat)
    assert not np.array_equal(first.splits["test"].tokens.flat, other.splits["test"].tokens.flat)
    assert not np.array_equal(first.splits["test"].tokens[0], first.splits["train"].tokens[0])


def test_too_many_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs=9 with length=32"):
        recall(**SMALL | {"pairs": 9})


def test_the_task_asks_for_the_second_values_alone_and_a_perfect_model_gets_them() -> None:
    task = Recall(DataConfig("recall", SMALL))
    batch = task.eval_batch("test", 0, 20)
    tokens, answers = batch["input_ids"], batch["shift_labels"]
    asked = answers != -100
    assert asked.sum() == 20 * 4 and not asked[:, :8].any()
    assert (answers[asked] == tokens.roll(-1, 1)[asked]).all()

    def perfect(**kwargs: object) -> SimpleNamespace:
        logits = torch.nn.functional.one_hot(answers.clamp(min=0), task.dataset.vocab_size).float() * 50
        return SimpleNamespace(logits=logits)

    scores = task.scores("test", task.sums(perfect, batch))  # type: ignore[arg-type]
    assert scores["accuracy"] == 1.0 and scores["loss"] < 1e-9
    assert task.baseline("test").score == 0.25
    config = task.config(
        ModelConfig(
            "adaptive_lm", num_hidden_layers=1, hidden_size=16, num_attention_heads=2, fields={"adaptive_cutoffs": None}
        )
    )
    assert config.is_decoder and config.vocab_size == 25 and config.max_position_embeddings == 32


def test_rows_of_several_numbers_of_pairs_are_scored_each_on_its_own() -> None:
    several = SMALL | {"pairs": 2, "most_pairs": 8, "keys": 16, "values": 16}
    task = Recall(DataConfig("recall", several))
    batch = task.eval_batch("test", 0, 20)
    answers, asked = batch["shift_labels"], batch["shift_labels"] != -100
    assert asked.sum(1).tolist() == [2, 4, 8] * 6 + [2, 4]
    for row, n in zip(batch["input_ids"].tolist(), asked.sum(1).tolist(), strict=True):
        shown = {row[i]: row[i + 1] for i in range(0, 2 * n, 2)}
        again = {row[i]: row[i + 1] for i in range(2 * n, 31) if 1 <= row[i] <= 16}
        assert shown == again and len(shown) == n

    def knows_rows_of_four(**kwargs: object) -> SimpleNamespace:
        known = torch.where((asked.sum(1) == 4)[:, None], answers.clamp(min=0), 0)
        return SimpleNamespace(logits=torch.nn.functional.one_hot(known, task.dataset.vocab_size).float() * 50)

    scores = task.scores("test", task.sums(knows_rows_of_four, batch))  # type: ignore[arg-type]
    assert [scores[f"accuracy@{n}"] for n in (2, 4, 8)] == [0, 1, 0]
    assert scores["accuracy"] == pytest.approx(7 * 4 / (7 * 2 + 7 * 4 + 6 * 8))
    assert task.baseline("test").score == pytest.approx(20 / 90)
    with pytest.raises(ValueError, match="most_pairs=6"):
        recall(**several | {"most_pairs": 6})


def test_another_set_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the set 'recall'"):
        Recall(DataConfig("listops-small", {"train": 5, "valid": 2, "test": 2}))
