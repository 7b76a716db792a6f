"""Numbers, several classes, tags and texts to write: rows, losses and scores against hand-counted ones."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cosformer.experiment import ModelConfig
from cosformer.models.classification import CosformerForPairClassification, CosformerForSequenceClassification
from cosformer.models.config import CosformerConfig
from cosformer.tasks.scores import confusion_matrix, confusion_sums, macro_f1, number_scores, number_sums
from cosformer.train.engine import weighted_loss

TINY = ModelConfig(
    "roberta_base",
    num_hidden_layers=1,
    hidden_size=16,
    num_attention_heads=2,
    intermediate_size=32,
    hidden_dropout_prob=0.0,
    fields={"pooling": "mean"},
)


def table(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def small(**changes: Any) -> CosformerConfig:
    return CosformerConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        **changes,
    )


def test_number_scores_are_those_by_hand() -> None:
    found, true = torch.tensor([1.0, 2.0, 4.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 6.0])
    a, b = (number_sums(found[s], true[s]) for s in (slice(0, 1), slice(1, 4)))
    scores = number_scores({key: a[key] + b[key] for key in a})
    errors = np.array([0, 1, 2, 2])
    assert scores["mae"] == pytest.approx(1.25) and scores["rmse"] == pytest.approx(1.5)
    assert scores["error"] == pytest.approx(errors.std(ddof=1) / 2)
    assert scores["r2"] == pytest.approx(1 - 9 / np.sum((true.numpy() - 3) ** 2))


def test_macro_f1_is_the_mean_over_classes() -> None:
    confusion = np.array([[3, 1, 0], [2, 4, 0], [0, 0, 0]])
    assert macro_f1(confusion) == pytest.approx((6 / 9 + 8 / 11) / 2)


def test_confusions_keep_their_places_whatever_the_order_of_the_sums() -> None:
    """Processes add up their sums in alphabetical order, in which class 10 comes before class 2."""
    found, true = torch.arange(24) % 12, torch.arange(24) * 5 % 12
    sums = confusion_sums(found, true, 12)
    expected = np.zeros((12, 12), int)
    np.add.at(expected, (true.numpy(), found.numpy()), 1)
    for order in (list(sums), sorted(sums)):
        counts = confusion_matrix({"rows": 24.0} | {key: sums[key] for key in order})
        assert counts is not None and (counts == expected).all()
    assert confusion_matrix({"rows": 24.0}) is None


def test_balanced_weights_make_classes_count_alike(make, tmp_path: Path) -> None:
    path = table(tmp_path, [{"text": f"t{i}", "label": "rare" if i % 5 == 0 else "usual"} for i in range(50)])
    task = make("classify", "table", path=path)
    weights = task.class_weights()
    counts = np.bincount(task.dataset.splits["train"].labels)
    assert (weights.numpy() * counts).tolist() == pytest.approx([sum(counts) / 2] * 2)
    logits, labels = torch.randn(6, 2), torch.tensor([0, 1, 1, 1, 0, 1])
    loss = weighted_loss(weights)
    whole = loss(SimpleNamespace(logits=logits), labels)
    by_hand = -(logits.log_softmax(-1)[range(6), labels] * weights[labels]).sum() / 6
    parts = [loss(SimpleNamespace(logits=logits[s]), labels[s], 6) for s in (slice(0, 2), slice(2, 6))]
    assert whole.item() == pytest.approx(by_hand.item()) == pytest.approx(torch.stack(parts).sum().item(), rel=1e-5)


def test_balanced_weights_of_tags_leave_out_tokens_without_one(make, tmp_path: Path) -> None:
    path = table(tmp_path, [{"words": ["ab", "c", "def"], "tags": ["X", "Y", "X"]}] * 12)
    weights = make("tag", "table", path=path, target="tags").class_weights()
    assert weights.tolist() == pytest.approx([3 / 4, 3 / 2])
    labels = torch.tensor([[0, -100, 1], [-100, -100, 0]])
    found = weighted_loss(weights)(SimpleNamespace(logits=torch.zeros(2, 3, 2)), labels)
    assert found.item() == pytest.approx(math.log(2) * (3 / 4 + 3 / 2 + 3 / 4) / 3)


def test_regression_answers_in_the_units_of_the_labels_and_learns_them(
    make, fit: Callable, sums: Callable, tmp_path: Path
) -> None:
    """A mean of a million with a spread of ten: without the scale in the model no learning rate would do."""
    path = table(tmp_path, [{"text": "ab"[i % 2] * 5, "score": 1e6 + 10 * (i % 2)} for i in range(40)])
    task = make("regress", "table", path=path, target="number")
    model = task.head(task.config(TINY)).eval()
    assert model.config.target_mean == pytest.approx(1e6 + 5, abs=2) and model.config.problem_type == "regression"
    batch = task.collate([task.train_row(i, 0) for i in range(8)])
    before = model(**batch).loss.item()
    assert before < 10, "in units of the spread"
    split = model(**batch, num_items_in_batch=torch.tensor(16)).loss.item()
    assert split == pytest.approx(before / 2, rel=1e-4), "a sum over the rows of all micro-batches"
    model = fit(model, batch, 60, 1e-2)
    scores = task.scores("valid", sums(task, model, "valid"))
    assert scores["mae"] < 2 < task.baseline("valid").score and scores["r2"] > 0.8


@pytest.mark.parametrize("labels", [torch.tensor([0.5, 2.0]), torch.tensor([1, 2])])
def test_pairs_learn_numbers_whole_ones_too(labels: torch.Tensor) -> None:
    """With one output, cross-entropy would be 0 for whole numbers and refuse the others."""
    model = CosformerForPairClassification(small(num_labels=1))
    ids = torch.randint(3, 40, (2, 6))
    found = model(ids, ids, labels=labels)
    assert found.loss.item() == pytest.approx(((found.logits[:, 0] - labels) ** 2).mean().item())


def test_losses_of_sequences_are_those_of_transformers() -> None:
    ids = torch.randint(3, 40, (3, 6))
    cases = {1: torch.tensor([0.5, 2.0, -1.0]), 3: torch.tensor([[1.0, 0, 1], [0, 0, 1], [0, 0, 0]])}
    for number, labels in {**cases, 4: torch.tensor([1, 3, 0])}.items():
        model = CosformerForSequenceClassification(small(num_labels=number)).eval()
        found = model(ids, labels=labels)
        stock = model.loss_function(labels=labels, pooled_logits=found.logits, config=model.config)
        assert found.loss.item() == pytest.approx(stock.item(), rel=1e-5)


def test_several_classes_are_scored_by_f1_over_all_decisions(make, tmp_path: Path) -> None:
    path = table(tmp_path, [{"text": f"t{i}", "labels": "|".join("abc"[: i % 4])} for i in range(40)])
    task = make("multilabel", "table", path=path, target="classes")
    batch = task.eval_batch("valid", 0, 4)
    true = batch["labels"].numpy() > 0
    logits = torch.tensor([[1.0, -1, 1]] * 4)
    got = task.sums(lambda **_: SimpleNamespace(logits=logits), batch)
    found = np.tile([True, False, True], (4, 1))
    scores = task.scores("valid", got)
    assert scores["f1"] == pytest.approx(2 * (found & true).sum() / (found.sum() + true.sum()))
    assert scores["exact"] == (found == true).all(1).mean()
    base = task.baseline("valid")
    assert 0 < base.score < 1 and base.name == "most frequent classes"
    assert task.config(TINY).problem_type == "multi_label_classification"


def test_tags_stand_at_the_first_token_of_their_word(make, tmp_path: Path) -> None:
    path = table(tmp_path, [{"words": ["ab", "c", "def"], "tags": ["X", "Y", "X"]}] * 12)
    task = make("tag", "table", path=path, target="tags")
    row = task.train_row(0, 0)
    assert task.dataset.vocabulary.decode(row["tokens"]) == "<s>ab c def</s>"
    labels = task.collate([row])["labels"][0]
    assert {i: int(t) for i, t in enumerate(labels) if t >= 0} == {1: 0, 4: 1, 6: 0}, "at a, c and d"
    batch = task.eval_batch("valid", 0, 1)
    always_x = torch.zeros(1, batch["labels"].shape[1], 2)
    always_x[..., 0] = 1
    scores = task.scores("valid", task.sums(lambda **_: SimpleNamespace(logits=always_x), batch))
    assert scores["accuracy"] == pytest.approx(2 / 3) == task.baseline("valid").score
    assert scores["macro_f1"] == pytest.approx((4 / 5 + 0) / 2)


def test_a_text_to_write_begins_behind_the_start_token(make, fit: Callable, sums: Callable, tmp_path: Path) -> None:
    path = table(tmp_path, [{"source": f"{i % 3}", "target": "abc"[i % 3] * 3} for i in range(30)])
    task = make("seq2seq", "table", path=path, target="text")
    batch = task.collate([task.train_row(i, 0) for i in range(6)])
    assert task.dataset.vocabulary.decode(batch["labels"][0]) == "aaa</s>"
    model = task.head(
        task.config(
            ModelConfig(
                "roberta_base",
                num_hidden_layers=1,
                hidden_size=16,
                num_attention_heads=2,
                intermediate_size=32,
                hidden_dropout_prob=0.0,
            )
        )
    )
    assert model.prepare_decoder_input_ids_from_labels(batch["labels"])[0, 0] == task.dataset.vocabulary.bos_id
    model = fit(model, batch, 80, 1e-2)
    scores = task.scores("valid", sums(task, model, "valid"))
    assert scores["loss"] < 0.3 < task.baseline("valid").score and scores["perplexity"] == pytest.approx(
        math.exp(scores["loss"])
    )


@pytest.mark.parametrize(
    ("task", "target"),
    [("classify", "number"), ("regress", "class"), ("multilabel", "class"), ("tag", "class"), ("seq2seq", "class")],
)
def test_a_task_refuses_rows_that_teach_something_else(task: str, target: str, make, tmp_path: Path) -> None:
    path = table(tmp_path, [{"text": f"t{i}", "label": i % 2} for i in range(20)])
    with pytest.raises(ValueError, match=r"task '\w+' needs|no evaluation 'train'"):
        make(task, "table", path=path, target=target)
