"""Language modelling: which targets are scored, with which context, and the figures that come of it."""

import lzma
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cosformer.data.masking import IGNORED
from cosformer.experiment import ModelConfig
from cosformer.tasks.lm import LM

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
}
PLAIN = ModelConfig("adaptive_lm", **SIZES, fields={"adaptive_cutoffs": None, "activation_dropout": 0.0})
ADAPTIVE = replace(PLAIN, fields={"adaptive_cutoffs": [5, 9], "activation_dropout": 0.0, "adaptive_dropout": 0.0})
HEADS = pytest.mark.parametrize("model", [PLAIN, ADAPTIVE], ids=["plain", "adaptive"])


def build(task: LM, model: ModelConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    return task.head(task.config(model)).eval()


def stream(task: LM, split: str) -> list[int]:
    return [int(t) for t in task.dataset.splits[split].tokens.flat]


@torch.no_grad()
def nats(model: torch.nn.Module, before: list[int], target: int) -> float:
    """-log p of one token after ``before``, by the model's output for that sequence alone."""
    logits = model(input_ids=torch.tensor([before]), use_cache=False).logits
    return -logits[0, -1].double().log_softmax(-1)[target].item()


def test_training_rows_hold_every_token_as_a_target_once(make: Callable, wikitext: str) -> None:
    task = make("lm", "wikitext2", length=16, path=wikitext)
    batch = task.collate([task.train_row(i, epoch=0) for i in range(task.train_rows)])
    tokens = stream(task, "train")
    targets, inputs = batch["shift_labels"], batch["input_ids"]
    assert targets[targets != IGNORED].tolist() == tokens
    assert inputs[targets != IGNORED].tolist() == [task.dataset.vocabulary.eos_id, *tokens[:-1]]
    assert len(tokens) % 16, "the last row is a short one here"
    assert batch["attention_mask"].tolist() == (targets != IGNORED).long().tolist()
    assert task.tokens(batch) == len(tokens)
    whole = task.collate([task.train_row(i, epoch=0) for i in range(3)])
    assert "attention_mask" not in whole and task.tokens(whole) == 48 and (whole["shift_labels"] != IGNORED).all()


@HEADS
def test_the_training_loss_is_the_mean_over_the_rows_targets(make: Callable, wikitext: str, model: ModelConfig) -> None:
    task = make("lm", "wikitext2", length=6, path=wikitext)
    net = build(task, model)
    rows = [0, 2, task.train_rows - 1]
    tokens = [task.dataset.vocabulary.eos_id, *stream(task, "train")]
    expected = [
        nats(net, tokens[6 * row : t + 1], tokens[t + 1])
        for row in rows
        for t in range(6 * row, min(6 * row + 6, len(tokens) - 1))
    ]
    loss = net(**task.collate([task.train_row(i, 0) for i in rows])).loss
    assert loss.item() == pytest.approx(np.mean(expected), abs=2e-6)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 500])
@pytest.mark.parametrize("eval_rows", [None, 1, 3])
def test_every_target_is_scored_once_and_with_its_context(
    make: Callable, wikitext: str, length: int, eval_rows: int | None
) -> None:
    task = make("lm", "wikitext2", length=length, eval_rows=eval_rows, path=wikitext)
    tokens = [task.dataset.vocabulary.eos_id, *stream(task, "valid")]
    end = len(tokens) - 1 if eval_rows is None else min(len(tokens) - 1, eval_rows * length)
    for context in {0, 1, length // 2, length - 1} & set(range(length)):
        name = f"valid@{context}" if context else "valid"
        place = 0  # the next target to be scored
        for index in range(task.eval_size(name)):
            batch = task.eval_batch(name, index, index + 1)
            inputs, targets = batch["input_ids"][0].tolist(), batch["shift_labels"][0].tolist()
            counted = [t != IGNORED for t in targets]
            assert len(inputs) <= length and counted == sorted(counted), "context first, then targets"
            first = place - counted.index(True)  # where the window starts in the stream
            assert inputs == tokens[first : first + len(inputs)]
            assert targets[counted.index(True) :] == tokens[place + 1 : place + 1 + sum(counted)]
            assert counted.index(True) == (context if index else 0)
            place += sum(counted)
        assert place == end


@HEADS
@pytest.mark.parametrize("name", ["valid", "valid@5"])
def test_scores_against_a_loop_over_single_tokens(
    make: Callable, sums: Callable, wikitext: str, model: ModelConfig, name: str
) -> None:
    task = make("lm", "wikitext2", length=8, path=wikitext)
    net = build(task, model)
    tokens = [task.dataset.vocabulary.eos_id, *stream(task, "valid")]
    starts = []  # of the window in which each target is scored
    for t in range(len(tokens) - 1):
        if name == "valid":
            starts.append(t // 8 * 8)
        else:  # windows of 8 that move on by 3
            starts.append(0 if t < 8 else (t - 8) // 3 * 3 + 3)
    losses = [nats(net, tokens[start : t + 1], tokens[t + 1]) for t, start in enumerate(starts)]
    scores = task.scores(name, sums(task, net, name))
    assert scores["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert scores["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-6)
    # a word-level set: its tokens are the words
    assert scores["word_perplexity"] == pytest.approx(scores["perplexity"], rel=1e-9)
    size = (Path(wikitext) / "wiki.valid.tokens").stat().st_size
    assert scores["bits_per_byte"] == pytest.approx(sum(losses) / math.log(2) / size, rel=1e-6)


def test_one_block_has_no_context_to_add(make: Callable, sums: Callable, wikitext: str) -> None:
    task = make("lm", "wikitext2", length=400, path=wikitext)
    net = build(task, PLAIN)
    assert task.eval_size("valid") == task.eval_size("valid@300") == 1
    assert task.scores("valid", sums(task, net, "valid")) == task.scores("valid@300", sums(task, net, "valid@300"))


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_sums_add_up_whatever_the_batch(make: Callable, sums: Callable, wikitext: str, batch: int) -> None:
    task = make("lm", "wikitext2", length=8, path=wikitext)
    net = build(task, PLAIN)
    assert sums(task, net, "valid@3", batch) == pytest.approx(sums(task, net, "valid@3", 3), rel=1e-6)


def test_the_error_is_that_of_the_blocks_means(make: Callable, sums: Callable, wikitext: str) -> None:
    task = make("lm", "wikitext2", length=5, eval_rows=6, path=wikitext)
    net = build(task, PLAIN)
    means = []
    for i in range(6):
        with torch.no_grad():
            one = task.sums(net, task.eval_batch("valid", i, i + 1))
        assert one["tokens"] == 5
        means.append(one["nats"] / 5)
    error = task.scores("valid", sums(task, net, "valid"))["error"]
    assert error == pytest.approx(np.std(means, ddof=1) / math.sqrt(6), rel=1e-6)


@pytest.mark.parametrize("tokenizer", ["words", "bytes", "bpe:270"])
def test_words_and_bytes_are_those_of_the_file(make: Callable, sums: Callable, wikitext: str, tokenizer: str) -> None:
    task = make("lm", "wikitext2", length=32, path=wikitext, tokenizer=tokenizer)
    raw = (Path(wikitext) / "wiki.valid.tokens").read_bytes()
    words = sum(len(line.split()) + 1 for line in raw.decode().splitlines())
    scores = task.scores("valid", sums(task, build(task, PLAIN), "valid", 8))
    total = scores["loss"] * len(stream(task, "valid"))
    assert scores["word_perplexity"] == pytest.approx(math.exp(total / words), rel=1e-6)
    assert scores["bits_per_byte"] == pytest.approx(total / math.log(2) / len(raw), rel=1e-6)


def test_limited_rows_count_the_text_they_score(make: Callable, sums: Callable, wikitext: str) -> None:
    task = make("lm", "wikitext2", length=10, eval_rows=2, path=wikitext, tokenizer="bytes")
    text = (Path(wikitext) / "wiki.valid.tokens").read_bytes()[:20]
    for name in ("valid", "valid@7"):
        counted = sums(task, build(task, PLAIN), name)
        scores = task.scores(name, counted)
        assert counted["tokens"] == 20
        assert scores["bits_per_byte"] == pytest.approx(counted["nats"] / math.log(2) / 20)
        words = len(text.split()) + text.count(b"\n")
        assert scores["word_perplexity"] == pytest.approx(math.exp(counted["nats"] / words))


def test_all_of_the_test_split_is_scored_and_by_position(make: Callable, sums: Callable, wikitext: str) -> None:
    task = make("lm", "wikitext2", length=20, eval_rows=2, full_test=True, path=wikitext, tokenizer="bytes")
    assert task.final == ["valid", "test"]
    model = build(task, PLAIN)
    counted = sums(task, model, "test")
    tokens = len(stream(task, "test"))
    assert counted["tokens"] == tokens and sums(task, model, "valid")["tokens"] == 40
    scores = task.scores("test", counted)
    assert {key for key in scores if "@" in key} == {"loss@0", "loss@8", "loss@16"}
    share = {first: counted[f"tokens@{first}"] / tokens for first in (0, 8, 16)}
    assert sum(share.values()) == pytest.approx(1)
    assert sum(share[first] * scores[f"loss@{first}"] for first in share) == pytest.approx(scores["loss"])
    batch = task.eval_batch("test", 0, 2)
    with torch.no_grad():
        single = model(**batch, reduction="none", use_cache=False).loss[:, 8:16].mean()
        found = task.scores("test", task.sums(model, batch))
    assert found["loss@8"] == pytest.approx(float(single), rel=1e-5)


@pytest.mark.parametrize("name", ["valid", "valid@3", "test"])
@pytest.mark.parametrize("eval_rows", [None, 4])
def test_the_baseline_is_the_unigram_model(make: Callable, wikitext: str, name: str, eval_rows: int | None) -> None:
    task = make("lm", "wikitext2", length=8, eval_rows=eval_rows, path=wikitext)
    train = stream(task, "train")
    counts, size = Counter(train), task.dataset.vocab_size
    scored = [
        t for i in range(task.eval_size(name)) for t in task.eval_batch(name, i, i + 1)["shift_labels"][0].tolist()
    ]
    losses = [-math.log((counts[t] + 1) / (len(train) + size)) for t in scored if t != IGNORED]
    baseline = task.baseline(name)
    assert baseline.name == "unigram" and baseline.score == pytest.approx(np.mean(losses), rel=1e-9)
    if name == "valid" and eval_rows == 4:
        means = np.reshape(losses, (4, 8)).mean(1)
        assert baseline.error == pytest.approx(np.std(means, ddof=1) / 2, rel=1e-9)


def test_it_learns_what_follows_what(make: Callable, fit: Callable, sums: Callable, tmp_path: Path) -> None:
    line = " the cat sat on a mat \n"
    for split in ("train", "valid"):
        (tmp_path / f"wiki.{split}.tokens").write_text(line * 40)
    task = make("lm", "wikitext2", length=28, path=str(tmp_path))
    net = fit(build(task, PLAIN), task.collate([task.train_row(i, 0) for i in range(8)]), updates=60, lr=1e-2)
    loss = task.scores("valid", sums(task, net, "valid"))["loss"]
    assert loss < 0.1 * task.baseline("valid").score


def test_the_model_fits_the_data(make: Callable, wikitext: str) -> None:
    task = make("lm", "wikitext2", length=12, path=wikitext)
    config = task.config(PLAIN)
    assert (config.max_position_embeddings, config.vocab_size, config.is_decoder) == (12, 14, True)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (1, 2, 2)
    assert task.config(replace(PLAIN, max_len=40)).max_position_embeddings == 40
    assert task.final == ["valid", "valid@9", "test", "test@9"] and task.selection == "valid"
    assert make("lm", "wikitext2", length=512, path=wikitext).final == ["valid", "valid@400", "test", "test@400"]


def test_mistakes_are_named(make: Callable, wikitext: str) -> None:
    task = make("lm", "wikitext2", length=12, path=wikitext)
    for wrong, message in (
        ("valid@12", "context of 12 leaves no target in windows of data.length=12"),
        ("valid@", "unknown evaluation 'valid@'"),
        ("dev", r"unknown evaluation 'dev'; a split \(train, valid, test\)"),
    ):
        with pytest.raises(ValueError, match=message):
            task.eval_size(wrong)
    with pytest.raises(ValueError, match=r"rows of 12 tokens exceed max_len=8; set model.max_len to 12 or more"):
        task.config(replace(PLAIN, max_len=8))
    with pytest.raises(ValueError, match=r"needs data.length"):
        make("lm", "wikitext2", path=wikitext)
    (Path(wikitext) / "wiki.train.tokens").unlink()
    with pytest.raises(ValueError, match="no split 'train' here, only valid, test"):
        make("lm", "wikitext2", length=12, path=wikitext, tokenizer="bytes")
    with pytest.raises(ValueError, match="has no end token"):
        make("lm", "listops-small", length=8, train=3, valid=1, test=1)


@pytest.mark.parametrize("tokenizer", ["words", "bytes", pytest.param("bpe:1000", marks=pytest.mark.slow)])
def test_words_and_bytes_of_the_real_set(make: Callable, real: Callable[[str], Path], tokenizer: str) -> None:
    """For every tokenizer the text is the file's, with the number of words known for the set."""
    folder = real("wikitext-2")
    raw = lzma.decompress((folder / "wiki.valid.tokens.xz").read_bytes())
    task = make("lm", "wikitext2", length=512, path=str(folder), tokenizer=tokenizer)
    scores = task.scores(
        "valid", {"rows": 2, "nats": 1e6, "tokens": 1, "nats_squared": 0, "nats_tokens": 0, "tokens_squared": 0}
    )
    assert 1e6 / math.log(scores["word_perplexity"]) == pytest.approx(217_646, rel=1e-9)
    assert 1e6 / math.log(2) / scores["bits_per_byte"] == pytest.approx(len(raw), rel=1e-9)


def test_layers_take_several_attentions_by_turns(make: Callable, wikitext: str) -> None:
    task = make("lm", "wikitext2", length=16, path=wikitext)
    mixed = replace(PLAIN, num_hidden_layers=3, attention="local,cosformer", attention_options={"local.window": 4})
    config = task.config(mixed)
    assert config.layer_attentions == ["local", "cosformer", "local"]
    assert config.layer_options == [{"window": 4}, {}, {"window": 4}]
    with pytest.raises(ValueError, match=r"say whose they are, as local\.window"):
        task.config(replace(mixed, attention_options={"window": 4}))
    with pytest.raises(ValueError, match="unknown attention 'locl'"):
        task.config(replace(mixed, attention="locl,cosformer", attention_options={}))
