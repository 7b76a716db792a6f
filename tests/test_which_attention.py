"""The page "Which attention should I use?" says the numbers that are committed."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
STUDY = DOCS.parent / "studies" / "cosformer2022" / "results"
PAGE = (DOCS / "explanation" / "which_attention.md").read_text(encoding="utf-8")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def measured(file: str, **wanted: object) -> float:
    found = json.loads((DOCS / "results" / file).read_text(encoding="utf-8"))["measurements"]
    (one,) = [m for m in found if all(m.get(key) == value for key, value in wanted.items())]
    return one["value"]


def row(start: str) -> str:
    (found,) = [line for line in PAGE.splitlines() if line.startswith(f"| {start}")]
    return found


def test_own_data() -> None:
    rows = {x["name"]: x for x in json.loads((DOCS / "results" / "own_data.json").read_text(encoding="utf-8"))["rows"]}
    tfidf, scratch = rows["TF-IDF and logistic regression"], rows["cosFormer from scratch on bytes, 4,096"]
    softmax, linear = rows["MiniLM with softmax, 512"], rows["MiniLM linearized, 2,048"]
    assert f"it has {tfidf['accuracy']:.1%}".replace("%", " %") in row("a small set")
    assert f"encoder {softmax['accuracy']:.1%}, ".replace("%", " %") in row("a small set")
    subwords = rows["cosFormer from scratch on sub-words, 4,096"]["accuracy"]
    said = f"from scratch {subwords:.1%} on sub-words and {scratch['accuracy']:.1%} on bytes"
    assert said.replace("%", " %") in row("a small set")
    encoder = row("a trained encoder")
    assert f"it has {linear['accuracy']:.1%}, as softmax has".replace("%", " %") in encoder
    assert linear["accuracy"] == softmax["accuracy"]
    assert f"{linear['seconds_per_epoch']:.0f} s an epoch instead of {softmax['seconds_per_epoch']:.0f} s" in encoder


def test_speed_and_states() -> None:
    forward = {"kind": "forward", "attention": "cosformer", "mode": "causal", "baseline": "sdpa"}
    short, long = (measured("attention.json", length=n, **forward) for n in (1024, 16_384))
    assert f"at 1,024 tokens it is {short:.1f} times faster, at 16,384 {long:.0f} times" in row("sequences shorter")
    stream = {"attention": "cosformer", "length": 65_536}
    step, state = (measured("generate.json", kind=kind, **stream) for kind in ("step", "state"))
    assert f"takes {step:.0f} times less than with softmax, and the state is {state:,.0f} times" in row("a stream")
    window = {"attention": "smollm2-window-transfer", "length": 65_536}
    step, state = (measured("decode.json", kind=kind, **window) for kind in ("step", "state"))
    assert f"takes {step:.0f} times less, its cache is {state:.0f} times smaller" in row("a trained decoder")


def test_linearized_models() -> None:
    found = {
        line["name"]: line["scores"]
        for line in lines(DOCS / "results" / "linearize.jsonl")
        if line["model"] == "minilm"
    }
    best = max((scores for scores in found.values() if "top-10" in scores), key=lambda scores: scores["top-10"])
    linear = next(scores for name, scores in found.items() if "longer transfer" in name)
    assert f"cosine of {linear['cosine']:.3f} and {linear['top-10']:.0%} of".replace("%", " %") in row(
        "a trained encoder"
    )
    assert best["top-10"] >= linear["top-10"]


def test_losses() -> None:
    def loss(recipe: str, attention: str) -> float:
        return fmean(
            line["scores"]["test"]["loss"]
            for line in lines(STUDY / "runs.jsonl")
            if (line["recipe"], line["attention"]) == (recipe, attention)
        )

    decays = lines(DOCS / "attention" / "multiscale.jsonl")

    def ours(recipe: str, gated: bool) -> float:
        return fmean(x["test_loss"] for x in decays if x["recipe"] == recipe and bool(x.get("output_gate")) == gated)

    language = row("a new language model")
    assert (
        f"loss of {ours('evidence-lm', True):.2f} nats a byte, without the additions {ours('evidence-lm', False):.2f}"
        in language
    )
    softmax, cosformer = loss("evidence-lm", "softmax"), loss("evidence-lm", "cosformer")
    assert f"absolute positions {softmax:.2f}, cosFormer {cosformer:.2f}" in language
    masked = (ours("evidence-mlm", False), loss("evidence-mlm", "softmax"), loss("evidence-mlm", "cosformer"))
    assert "{:.2f} nats, softmax {:.2f}, cosFormer {:.2f}".format(*masked) in row("a new encoder")
    assert f"by {cosformer - softmax:.2f} nats a byte" in row("to reproduce")
