"""Masked language modelling: which tokens are hidden, when they are drawn anew, and the loss on them alone."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cosformer.data.masking import IGNORED
from cosformer.data.sequences import PackedLines
from cosformer.experiment import ModelConfig
from cosformer.tasks.mlm import MLM

TINY = ModelConfig(
    "roberta_base",
    num_hidden_layers=2,
    hidden_size=16,
    num_attention_heads=2,
    intermediate_size=32,
    hidden_dropout_prob=0.0,
)


def build(task: MLM) -> torch.nn.Module:
    torch.manual_seed(0)
    model = task.head(task.config(TINY)).eval()
    with torch.no_grad():  # fresh models guess nearly evenly: larger weights tell one token from another
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def same(a: dict, b: dict) -> bool:
    return all(np.array_equal(a[key], b[key]) for key in ("inputs", "labels"))


def test_masks_come_from_seed_epoch_and_row_alone(make: Callable, wikitext: str) -> None:
    task, again, other = (make("mlm", "wikitext2", seed=seed, length=32, path=wikitext) for seed in (3, 3, 4))
    row = task.train_row(2, epoch=5)
    task.train_row(1, epoch=0)
    assert same(row, task.train_row(2, epoch=5)) and same(row, again.train_row(2, epoch=5))
    assert not same(row, task.train_row(2, epoch=6)), "drawn anew in every epoch"
    assert not same(row, other.train_row(2, epoch=5)), "another seed draws other places"


def test_rows_are_drawn_apart(make: Callable, tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (tmp_path / f"wiki.{split}.tokens").write_text(" a b c d e f g h i j k l m n o \n" * 4)
    task = make("mlm", "wikitext2", length=17, path=str(tmp_path))
    places = [tuple(np.flatnonzero(task.train_row(i, 0)["labels"] != IGNORED)) for i in range(4)]
    assert len(set(places)) > 1, "rows of the same text must not all hide the same places"


def test_evaluations_hide_the_same_for_every_model(make: Callable, wikitext: str) -> None:
    task, other = (make("mlm", "wikitext2", seed=seed, length=32, path=wikitext) for seed in (0, 1))
    for start, stop in ((0, 3), (1, 3)):
        a, b = task.eval_batch("valid", start, stop), other.eval_batch("valid", start, stop)
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    alone, among = task.eval_batch("valid", 1, 2), task.eval_batch("valid", 0, 3)
    width = alone["labels"].shape[1]
    assert torch.equal(alone["labels"][0], among["labels"][1, :width]), "nor does it matter how rows are batched"


def test_training_hides_the_share_it_is_told_and_evaluations_fifteen_percent(make: Callable, wikitext: str) -> None:
    tasks = [
        make("mlm", "wikitext2", length=64, path=wikitext, tokenizer="bytes", masked=share) for share in (0.15, 0.6)
    ]
    hidden = []
    for task in tasks:
        open_places = np.concatenate([task.choosable[task.packed["train"][i]] for i in range(task.train_rows)])
        rows = [task.train_row(i, epoch)["labels"] for epoch in range(20) for i in range(task.train_rows)]
        hidden.append(np.sum(np.concatenate(rows) != IGNORED) / (20 * open_places.sum()))
    assert hidden == pytest.approx([0.15, 0.6], abs=0.03)
    first, second = (task.eval_batch("valid", 0, 3)["labels"] for task in tasks)
    assert torch.equal(first, second)
    with pytest.raises(ValueError, match=r"data.masked=1.5; it must be between 0 and 1"):
        make("mlm", "wikitext2", length=64, path=wikitext, masked=1.5)
    with pytest.raises(ValueError, match=r"data.masked=0.4: task 'lm' hides no tokens"):
        make("lm", "wikitext2", length=64, path=wikitext, masked=0.4)


@pytest.mark.parametrize("tokenizer", ["words", "bytes", "bpe:270"])
def test_special_tokens_are_never_hidden_nor_put_in(make: Callable, wikitext: str, tokenizer: str) -> None:
    task = make("mlm", "wikitext2", length=32, path=wikitext, tokenizer=tokenizer)
    v = task.dataset.vocabulary
    assert (task.bos_id, task.pad_id, task.mask_id, task.vocab_size) == (v.bos_id, v.pad_id, v.mask_id, v.size)
    special = {v.bos_id, v.pad_id, v.eos_id, v.mask_id}
    originals = list(PackedLines(task.dataset.splits["train"], 32, task.bos_id))
    hidden, changed = Counter(), Counter()
    for epoch in range(20):
        for index, original in enumerate(originals):
            row = task.train_row(index, epoch)
            where = row["labels"] != IGNORED
            assert (row["labels"][where] == original[where]).all() and (row["inputs"][~where] == original[~where]).all()
            hidden.update(row["labels"][where].tolist())
            changed.update(row["inputs"][where & (row["inputs"] != original)].tolist())
    assert not hidden.keys() & special
    assert changed.pop(task.mask_id) > 0.6 * hidden.total() and not changed.keys() & {*special, v.unk_id}
    text = sum(t not in special for row in originals for t in row.tolist())
    assert abs(hidden.total() / (20 * text) - 0.15) < 0.02
    if tokenizer == "words":
        assert hidden[v.unk_id], "<unk> is a word of this text"


def test_a_vocabulary_without_special_tokens_gets_them_behind_its_own(make: Callable, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for kind in ("neg", "pos"):
            (tmp_path / split / kind).mkdir(parents=True)
            (tmp_path / split / kind / "0_1.txt").write_text(f"{kind}, {split} " * 4)
    task = make("mlm", "text", length=16, path=str(tmp_path))
    assert (task.pad_id, task.bos_id, task.mask_id, task.vocab_size) == (0, 257, 258, 259)
    config = task.config(TINY)
    assert (config.vocab_size, config.pad_token_id, config.bos_token_id, config.eos_token_id) == (259, 0, 257, None)
    batch = task.collate([task.train_row(i, 0) for i in range(task.train_rows)])
    assert (batch["input_ids"][:, 0] == 257).all() and (batch["input_ids"] == 258).any()
    assert torch.isfinite(build(task)(**batch).loss)


def test_scores_against_a_loop_over_rows(make: Callable, sums: Callable, wikitext: str) -> None:
    task = make("mlm", "wikitext2", length=24, path=wikitext)
    net = build(task)
    nats, counts = [], []
    for index in range(task.eval_size("valid")):
        batch = task.eval_batch("valid", index, index + 1)
        assert batch["attention_mask"].all(), "a row alone has no padding"
        with torch.no_grad():
            guess = net(input_ids=batch["input_ids"]).logits[0].double().log_softmax(-1)
        places = [(i, t) for i, t in enumerate(batch["labels"][0].tolist()) if t != IGNORED]
        nats.append(-sum(guess[i, t].item() for i, t in places))
        counts.append(len(places))
    scores = task.scores("valid", sums(task, net, "valid", batch=4))
    loss = sum(nats) / sum(counts)
    assert scores["loss"] == pytest.approx(loss, rel=1e-5) and scores["bits"] == pytest.approx(
        loss / math.log(2), rel=1e-5
    )
    deviations = [n - loss * c for n, c in zip(nats, counts, strict=True)]
    rows = len(nats)
    error = math.sqrt(sum(d * d for d in deviations) / (rows - 1) * rows) / sum(counts)
    assert scores["error"] == pytest.approx(error, rel=1e-4)


def test_padding_is_masked_and_not_scored(make: Callable, wikitext: str) -> None:
    task = make("mlm", "wikitext2", length=24, path=wikitext)
    rows = [task.train_row(i, 0) for i in range(task.train_rows)]
    batch = task.collate(rows)
    lengths = [len(row["inputs"]) for row in rows]
    assert len(set(lengths)) > 1 and batch["input_ids"].shape[1] == max(lengths)
    for i, n in enumerate(lengths):
        assert batch["attention_mask"][i].tolist() == [1] * n + [0] * (max(lengths) - n)
        assert (batch["labels"][i, n:] == IGNORED).all() and (batch["input_ids"][i, n:] == task.pad_id).all()
    assert task.tokens(batch) == sum(lengths)


@pytest.mark.parametrize("eval_rows", [None, 2])
def test_the_baseline_is_the_unigram_model_on_the_hidden_tokens(
    make: Callable, wikitext: str, eval_rows: int | None
) -> None:
    task = make("mlm", "wikitext2", length=24, eval_rows=eval_rows, path=wikitext)
    v = task.dataset.vocabulary
    special = {v.bos_id, v.pad_id, v.eos_id, v.mask_id}
    train = [t for t in task.dataset.splits["train"].tokens.flat.tolist() if t not in special]
    counts, size = Counter(train), v.size - len(special)
    hidden = []
    for index in range(task.eval_size("valid")):
        labels = task.eval_batch("valid", index, index + 1)["labels"][0].tolist()
        hidden.append([-math.log((counts[t] + 1) / (len(train) + size)) for t in labels if t != IGNORED])
    baseline = task.baseline("valid")
    everything = [n for row in hidden for n in row]
    assert baseline.name == "unigram" and baseline.score == pytest.approx(np.mean(everything), rel=1e-9)
    squares = sum((sum(row) - baseline.score * len(row)) ** 2 for row in hidden)
    error = math.sqrt(squares * len(hidden) / (len(hidden) - 1)) / len(everything)
    assert baseline.error == pytest.approx(error, rel=1e-9)
    assert eval_rows is None or len(hidden) == 2


def test_the_model_fits_the_data(make: Callable, wikitext: str) -> None:
    task = make("mlm", "wikitext2", length=20, path=wikitext)
    config = task.config(TINY)
    assert (config.max_position_embeddings, config.vocab_size, config.is_decoder) == (20, 14, False)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (1, 0, 2)
    assert task.final == ["valid", "test"]
    # a preset with a CLS vector of its own serves too: the rows bring their <s>
    assert not task.config(replace(TINY, preset="lra_text", fields={"head_dim": 8})).cls_token


def test_mistakes_are_named(make: Callable, wikitext: str) -> None:
    task = make("mlm", "wikitext2", length=20, path=wikitext)
    with pytest.raises(ValueError, match=r"unknown evaluation 'dev'; known: train, valid, test"):
        task.eval_size("dev")
    with pytest.raises(ValueError, match=r"rows of 20 tokens exceed max_len=16"):
        task.config(replace(TINY, max_len=16))
    with pytest.raises(ValueError, match=r"needs data.length"):
        make("mlm", "wikitext2", path=wikitext)
    (Path(wikitext) / "wiki.train.tokens").unlink()
    with pytest.raises(ValueError, match="no split 'train' here, only valid, test"):
        make("mlm", "wikitext2", length=12, path=wikitext, tokenizer="bytes")
