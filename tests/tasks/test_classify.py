"""Classification of sequences and of pairs of documents: padding, scores, the majority class, mistakes."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cosformer.experiment import ModelConfig
from cosformer.tasks.base import Task
from cosformer.tasks.classify import windows

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
}
TEXT = ModelConfig("lra_text", **SIZES, fields={"head_dim": 8, "classifier_sizes": [16]})
PAIR = replace(TEXT, preset="lra_retrieval")
TRAIN = [("a fine film", 1), ("dull", 0), ("I would see it again and again", 1), ("good", 1), ("", 0)]
DEV = [("bad", 0), ("a truly good one, this", 1), ("so so", 0), ("fine", 1), ("no", 0), ("never again", 0), ("yes", 1)]


def write_sst2(folder: Path, **splits: list[tuple[str, int]]) -> None:
    for name, rows in splits.items():
        lines = [f"{text}\t{label}" for text, label in rows]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")


@pytest.fixture
def sst2(tmp_path: Path) -> str:
    """Seven labelled rows to score, two to train on for each class, and a test split without labels."""
    write_sst2(tmp_path, train=TRAIN, dev=DEV)
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\twhat a film\n")
    return str(tmp_path)


@pytest.fixture
def retrieval(tmp_path: Path) -> str:
    rng = np.random.default_rng(5)
    for name, rows in {"train": 6, "eval": 5, "test": 4}.items():
        lines = []
        for i in range(rows):
            first, second = ("".join(rng.choice(list("abcd e"), rng.integers(3, 20))) for _ in range(2))
            lines.append(f"{i % 3 // 2}.0\tP{i}\tQ{i}\t{first}\t{second}\n")
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text("".join(lines))
    return str(tmp_path)


def build(task: Task, model: ModelConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    net = task.head(task.config(model)).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net


def loop(task: Task, net: torch.nn.Module, name: str) -> tuple[float, float]:
    """Accuracy and mean loss from the raw arrays, row by row and without padding."""
    split, hits, losses = task.dataset.splits[name], [], []
    assert split.labels is not None
    for i, label in enumerate(split.labels.tolist()):
        given = {"input_ids": torch.tensor([split.tokens[i].tolist()])}
        if split.second is not None:
            given["input_ids_b"] = torch.tensor([split.second[i].tolist()])
        with torch.no_grad():
            guess = net(**given).logits[0].double().log_softmax(-1)
        hits.append(int(guess.argmax()) == label)
        losses.append(-guess[label].item())
    return float(np.mean(hits)), float(np.mean(losses))


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_scores_against_a_loop_over_rows(make: Callable, sums: Callable, sst2: str, pooling: str) -> None:
    task = make("classify", "sst2", path=sst2)
    net = build(task, replace(TEXT, fields=TEXT.fields | {"pooling": pooling}))
    scores = task.scores("valid", sums(task, net, "valid"))
    accuracy, loss = loop(task, net, "valid")
    assert 0 < accuracy < 1, "a model that is right now and then"
    assert scores["accuracy"] == accuracy and scores["loss"] == pytest.approx(loss, rel=1e-5)
    assert scores["error"] == pytest.approx(math.sqrt(accuracy * (1 - accuracy) / 7))


def test_rows_are_padded_to_the_longest_and_masked(make: Callable, sst2: str) -> None:
    task = make("classify", "sst2", path=sst2)
    batch = task.collate([task.train_row(i, epoch=0) for i in range(5)])
    lengths = [len(text) + 2 for text, _ in TRAIN]  # bytes, <s> and </s>
    assert batch["input_ids"].shape == (5, max(lengths)) and batch["labels"].tolist() == [1, 0, 1, 1, 0]
    assert batch["attention_mask"].sum(1).tolist() == lengths and task.tokens(batch) == sum(lengths)
    assert (batch["input_ids"][batch["attention_mask"] == 0] == task.dataset.pad_id).all()
    assert batch["input_ids"][1, :6].tolist() == [257, *(b + 1 for b in b"dull"), 258]
    assert torch.isfinite(build(task, TEXT)(**batch).loss)


def test_the_baseline_is_the_class_most_frequent_in_training(make: Callable, sst2: str) -> None:
    task = make("classify", "sst2", path=sst2)
    baseline = task.baseline("valid")
    assert baseline.score == 3 / 7, "1 leads in training, though 0 does here"
    assert baseline.error == pytest.approx(math.sqrt(3 / 7 * 4 / 7 / 7)) and baseline.name == "majority class"
    few = make("classify", "sst2", eval_rows=2, path=sst2)
    assert few.eval_size("valid") == 2 and few.baseline("valid").score == 1 / 2
    spread = few.eval_batch("valid", 0, 99)  # the first and the fourth of seven
    assert spread["labels"].tolist() == [0, 1]
    assert spread["input_ids"][1].tolist() == [257, *(b + 1 for b in b"fine"), 258]


def test_splits_without_labels_are_left_out(make: Callable, sst2: str) -> None:
    task = make("classify", "sst2", path=sst2)
    assert task.final == ["valid"] and task.selection == "valid" and task.train_rows == 5
    with pytest.raises(ValueError, match="no evaluation 'test': the splits with labels are train, valid"):
        task.eval_size("test")


def test_the_model_fits_the_data(make: Callable, sst2: str) -> None:
    task = make("classify", "sst2", path=sst2, max_length=40)
    config = task.config(TEXT)
    assert config.cls_token and config.max_position_embeddings == 41, "the CLS vector takes a place"
    assert task.config(replace(TEXT, fields=TEXT.fields | {"cls_token": False})).max_position_embeddings == 40
    assert task.config(replace(TEXT, max_len=64)).max_position_embeddings == 64
    assert (config.vocab_size, config.num_labels, config.pad_token_id, config.bos_token_id) == (260, 2, 0, 257)
    longer = make("classify", "sst2", length=50, path=sst2, max_length=40)
    assert longer.config(TEXT).max_position_embeddings == 51


def test_images_have_no_padding(make: Callable) -> None:
    task = make("classify", "pathfinder-small", train=4, valid=2, test=2)
    config = task.config(ModelConfig("lra_pathfinder"))
    assert config.pad_token_id is None and config.pooling == "mean_all" and config.max_position_embeddings == 1024
    batch = task.collate([task.train_row(i, 0) for i in range(3)])
    assert batch["input_ids"].shape == (3, 1024) and batch["attention_mask"].all() and task.tokens(batch) == 3 * 1024


def test_it_can_fit_a_few_rows(make: Callable, fit: Callable) -> None:
    task = make("classify", "listops-small", train=24, valid=2, test=2)
    batch = task.collate([{"tokens": task.train_row(i, 0)["tokens"][:32], "label": i % 2} for i in range(24)])
    net = fit(build(task, replace(TEXT, preset="lra_listops")), batch, updates=80, lr=3e-3)
    with torch.no_grad():
        scores = task.scores("train", task.sums(net, batch))
    assert scores["accuracy"] > 0.9 and scores["loss"] < 0.4


def test_pairs_against_a_loop_over_rows(make: Callable, sums: Callable, retrieval: str) -> None:
    task = make("match", "retrieval", path=retrieval)
    net = build(task, PAIR)
    for name in ("valid", "test"):
        scores = task.scores(name, sums(task, net, name))
        accuracy, loss = loop(task, net, name)
        assert scores["accuracy"] == accuracy and scores["loss"] == pytest.approx(loss, rel=1e-5)
    assert task.final == ["valid", "test"]
    assert task.baseline("valid").score == 4 / 5 and task.baseline("test").score == 3 / 4


def test_both_documents_are_padded_and_counted(make: Callable, retrieval: str) -> None:
    task = make("match", "retrieval", path=retrieval)
    batch = task.collate([task.train_row(i, 0) for i in range(6)])
    split = task.dataset.splits["train"]
    assert split.second is not None and task.tokens(batch) == len(split.tokens.flat) + len(split.second.flat)
    for key, column in (("", split.tokens), ("_b", split.second)):
        assert batch[f"attention_mask{key}"].sum(1).tolist() == column.lengths.tolist()
        assert batch[f"input_ids{key}"][batch[f"attention_mask{key}"] == 1].tolist() == column.flat.tolist()
    loss = build(task, PAIR)(**batch).loss
    assert torch.isfinite(loss)
    assert task.config(PAIR).max_position_embeddings == 4000, "no CLS vector in a dual encoder"


def test_mistakes_are_named(make: Callable, sst2: str, retrieval: str, wikitext: str) -> None:
    with pytest.raises(ValueError, match=r"a row of 32 tokens, more than data.length=20; set data.length to 32"):
        make("classify", "sst2", length=20, path=sst2)
    task = make("classify", "sst2", path=sst2, max_length=40)
    with pytest.raises(ValueError, match=r"rows of 41 tokens with the CLS vector exceed max_len=40"):
        task.config(replace(TEXT, max_len=40))
    with pytest.raises(ValueError, match=r"pooling='mean_all' counts padding.* have 2 to 32 tokens"):
        task.config(replace(TEXT, fields=TEXT.fields | {"pooling": "mean_all"}))
    with pytest.raises(ValueError, match="has no classes"):
        make("classify", "wikitext2", path=wikitext)
    with pytest.raises(ValueError, match="two documents a row; use task 'match'"):
        make("classify", "retrieval", path=retrieval)
    with pytest.raises(ValueError, match="one document a row; task 'match' needs two"):
        make("match", "sst2", path=sst2)


def test_rows_to_score_are_spread_over_a_split_that_is_sorted_by_class(make: Callable, tmp_path: Path) -> None:
    rows = [(f"text {i}", int(i >= 6)) for i in range(12)]
    write_sst2(tmp_path, train=rows, dev=rows)
    task = make("classify", "sst2", eval_rows=4, path=str(tmp_path))
    assert task.eval_size("valid") == 4 and task.baseline("valid").score == 1 / 2
    assert task.eval_batch("valid", 0, 4)["labels"].tolist() == [0, 0, 1, 1]
    assert task.eval_batch("valid", 1, 3)["labels"].tolist() == [0, 1]


def test_windows_cover_a_long_document_and_overlap() -> None:
    tokens = np.array([257, *range(1, 41), 258])
    found = windows(tokens, 12, (257, 258))
    assert all(len(w) == 12 and w[0] == 257 and w[-1] == 258 for w in found)
    assert {int(t) for w in found for t in w[1:-1]} == set(range(1, 41))
    assert all(len(set(a[1:-1]) & set(b[1:-1])) >= 2 for a, b in itertools.pairwise(found)), "by a quarter of 10 tokens"
    assert (
        windows(tokens, 42, (257, 258))[0] is tokens
        and [len(w) for w in windows(tokens[1:-1], 12, (257, 258))] == [12] * 5
    )
    drawn = {int(windows(tokens, 12, (257, 258), np.random.default_rng(i))[0][1]) for i in range(200)}
    assert drawn == set(range(1, 32)), "every stretch can be drawn"
    with pytest.raises(ValueError, match="length=2 leaves no room"):
        windows(tokens, 2, (257, 258))


@pytest.mark.parametrize("long", ["cut", "windows"])
def test_long_documents_are_scored_by_all_their_windows(long: str, make, tmp_path: Path) -> None:
    """A model that says ``good`` where it sees a g: hidden behind the cut it is found by a window alone."""
    rows = [f"{'x' * 60}{'g' if i % 2 else 'b'}{'x' * 60},{('bad', 'good')[i % 2]}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    task = make("classify", "table", length=40, long=long, path=str(tmp_path / "a.csv"))

    def model(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        assert input_ids.shape[1] <= 40
        seen = (input_ids == ord("g") + 1).any(1).float() * 9
        return SimpleNamespace(logits=torch.stack([torch.ones_like(seen), seen], dim=1))

    size = task.eval_size("valid")
    whole = task.sums(model, task.eval_batch("valid", 0, size))
    parts = [task.sums(model, task.eval_batch("valid", i, i + 1)) for i in range(size)]
    assert whole["rows"] == size and whole["nats"] == pytest.approx(sum(p["nats"] for p in parts))
    assert whole["hits"] == {"cut": size / 2, "windows": size}[long]
    assert len(task.train_row(0, 0)["tokens"]) == 40
    same = [np.array_equal(task.train_row(0, 0)["tokens"], task.train_row(0, epoch)["tokens"]) for epoch in range(20)]
    assert all(same) == (long == "cut"), "windows are drawn anew in every epoch"
