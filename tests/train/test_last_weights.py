"""A test split is scored during training where there is no other, and chooses no weights."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.train import train

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}


def test_without_a_validation_split_the_last_weights_are_kept(data_home: None, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            (tmp_path / "aclImdb" / split / label).mkdir(parents=True)
            for i in range(8):
                (tmp_path / "aclImdb" / split / label / f"{i}_1.txt").write_text(f"{label} film {i}")
    # at this rate no evaluation is the best one for long
    settings = TrainConfig(9, 4, 0.05, eval_every=1, save_every=9, tracker="none", threads=1)
    made = Experiment(
        "test",
        "classify",
        DataConfig("imdb", {"path": str(tmp_path / "aclImdb")}),
        ModelConfig("roberta_base", **SIZES),
        settings,
    )
    train(made, tmp_path / "run", quiet=True)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    scores = [line["scores"]["accuracy"] for line in lines if line["kind"] == "eval"]
    assert len(scores) == 9 and scores[-1] <= max(scores[:-1]), "choosing would have chosen another one"
    card = (tmp_path / "run" / "best" / "README.md").read_text()
    assert "the weights after update 9, the last ones" in card and f"{scores[-1]:.4f}" in card
    with pytest.raises(ValueError, match="early_stopping needs a validation split, which data set 'imdb' lacks"):
        train(replace(made, train=replace(settings, early_stopping=1)), tmp_path / "other", quiet=True)
    assert not (tmp_path / "other").exists()
