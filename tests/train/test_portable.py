"""A run's folder of best weights is self-contained: transformers loads its tokenizer and pipelines."""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, pipeline

import cosformer.hf  # noqa: F401  (registers the models)
from cosformer.data.encoding import with_specials
from cosformer.data.vocabulary import Bytes, Words
from cosformer.experiment import Experiment
from cosformer.machine import without_folders
from cosformer.shipped import STDLIB_MODEL
from cosformer.train import load_model, train
from cosformer.train.vocabulary import as_transformers

LENGTH = 48
BODY = {
    "preset": "lra_text",
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
BODY |= {"fields": {"head_dim": 8, "classifier_sizes": [16]}}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Letters of all kinds and lengths, also those that cannot be seen, and what looks like a special token."""
    rng = random.Random(0)
    kinds = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0x10000, 0x10FFFF)]
    drawn = ["".join(chr(rng.randint(*rng.choice(kinds))) for _ in range(rng.randint(0, 60))) for _ in range(300)]
    return [*drawn, "", " ", "\x00\xff", "a <s> b </s>", "<pad><mask>", "naïve  cafe\u0301 \r\n\t", "x" * 500]


@pytest.fixture
def reviews(small: Callable[..., Experiment], tmp_path: Path) -> Experiment:
    """Two updates of a classifier on a few reviews, as bytes."""
    lines = [f"{text}\t{label}" for text, label in [("a fine film", 1), ("dull", 0), ("good", 1), ("bad", 0)]]
    (tmp_path / "private").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "private" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    data = {"name": "sst2", "options": {"path": str(tmp_path / "private"), "max_length": LENGTH}}
    return small(task="classify", model=BODY, data=data | {"length": None, "eval_rows": None}, steps=2, save_every=2)


@pytest.mark.parametrize("special", [True, False])
def test_a_byte_tokenizer_makes_the_ids_of_the_data(texts: list[str], tmp_path: Path, special: bool) -> None:
    ours = Bytes(special=special)
    as_transformers(ours, "classify", LENGTH).save_pretrained(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == ours.size and theirs.model_max_length == LENGTH
    for text in texts:
        ids = ours.encode([text])[0]
        plain = theirs(text, add_special_tokens=False)["input_ids"]
        assert plain == ids.tolist() == [byte + 1 for byte in text.encode()]
        assert theirs.decode(plain) == text
        row = with_specials(ids, None, ours, LENGTH)[0] if special else ids[:LENGTH]
        assert theirs(text, truncation=True)["input_ids"] == row.tolist()
    if special:
        for first, second in zip(texts[::2], texts[1::2], strict=False):
            for most in (LENGTH, 10_000):
                row = with_specials(*(ours.encode([text])[0] for text in (first, second)), ours, most)[0]
                pair = theirs(
                    [first], [second], truncation=True, max_length=most
                )  # in a list: alone, "" is no second text
                assert pair["input_ids"][0] == row.tolist()
    batch = theirs(["ab", "c"], padding=True)
    assert [sum(mask) for mask in batch["attention_mask"]] == [2 + 2 * special, 1 + 2 * special]
    assert batch["input_ids"][1][-1] == theirs.pad_token_id == 0


def test_a_byte_tokenizer_of_a_masked_model_reads_masks(tmp_path: Path) -> None:
    tokenizer = as_transformers(Bytes(special=True), "mlm", LENGTH)
    assert tokenizer("a<mask>")["input_ids"] == [257, ord("a") + 1, 259, 258]


def test_a_word_tokenizer_makes_the_ids_of_the_data(tmp_path: Path) -> None:
    words = Words(["<s>", "<pad>", "</s>", "<unk>", "the", "cat", "<mask>"])
    as_transformers(words, "lm", LENGTH).save_pretrained(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("the cat  sat \n <unk> the")["input_ids"] == [4, 5, 3, 3, 4]
    assert theirs.decode([4, 5, 2]) == "the cat </s>"
    with pytest.raises(Exception, match="UNK"):  # tokenizers' own kind
        as_transformers(Words(["k0", "v0"]), "recall", LENGTH)("k0 nonsense")


def test_a_stock_pipeline_classifies_with_a_run_of_bytes(reviews: Experiment, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(reviews, run, quiet=True)
    classify = pipeline("text-classification", model=str(run / "best"), truncation=True)
    long = "a fine film, " * 100
    answers = [answer[0] for answer in classify(["a fine film", long], top_k=1)]
    model: Any = load_model(run)
    assert model.config.id2label == {0: "negative", 1: "positive"}
    for text, answer in zip(("a fine film", long), answers, strict=True):
        ids = torch.tensor([[257, *(byte + 1 for byte in text.encode()[: LENGTH - 2]), 258]])
        with torch.no_grad():
            wanted = model(input_ids=ids).logits.softmax(-1)[0]
        assert answer["label"] == ("negative", "positive")[int(wanted.argmax())]
        assert answer["score"] == pytest.approx(float(wanted.max()), abs=1e-5)


@pytest.mark.parametrize(
    ("task", "kind", "text"), [("mlm", "fill-mask", "def <mask>("), ("lm", "text-generation", "def")]
)
def test_stock_pipelines_take_language_models_of_bytes(small, tmp_path, task: str, kind: str, text: str) -> None:
    train(small(task=task, steps=1, batch=2, save_every=1, eval_every=1), tmp_path / "run", quiet=True)
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False} if task == "lm" else {}
    answer = pipeline(kind, model=str(tmp_path / "run" / "best"))(text, **options)[0]
    if task == "lm":
        assert answer["generated_text"].startswith("def")
    else:
        assert 0 <= answer["token"] < 260 and 0 < answer["score"] < 1 and answer["sequence"].startswith("def")


def test_the_shipped_model_brings_its_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(STDLIB_MODEL / "best")
    assert tokenizer("def é")["input_ids"] == [byte + 1 for byte in "def é".encode()]


def test_the_card_says_what_the_run_knows_and_nothing_private(
    reviews: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    words = ["train", "sst2", "--data.options.path", str(tmp_path / "private"), f"--run={run}"]
    monkeypatch.setattr(sys, "argv", ["cosformer", *words])
    result = train(reviews, run, quiet=True)
    card = (run / "best" / "README.md").read_text()
    assert "train 4, valid 4" in card and "negative, positive" in card and "`sst2` (path=private" in card
    assert "`cosformer train sst2 --data.options.path private --run=run`" in card
    shown = result["scores"]["valid"]
    assert f"| valid | {shown['accuracy']:.4f} ± {shown['error']:.4f} | 0.5000 |" in card
    best = json.loads((run / "run.json").read_text())["best"]
    assert f"after update {best['step']}, chosen by `accuracy` on the split `valid`: {best['score']:.4f}" in card
    assert str(tmp_path) not in card and "dull" not in card
    (run / "best" / "README.md").write_text("mine")  # an edited card is no damage
    assert load_model(run) is not None


def test_paths_lose_their_folders() -> None:
    words = ["train", "--data", "/home/me/my files/a.csv", "--run=/work/x/", "a.csv,/b/c.csv", "~/d/e", "runs/f", "/"]
    assert without_folders(words) == "train --data a.csv --run=x a.csv,c.csv e runs/f /"
    assert (
        without_folders([r"C:\Users\me\a.csv", "https://host/a", "owner/model"]) == "a.csv https://host/a owner/model"
    )
