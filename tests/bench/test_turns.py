"""Runs that take turns: each is what it would be alone, and nobody waits for one that is gone."""

import json
from pathlib import Path

import pytest

from cosformer.bench.turns import train_in_turns
from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.train import train

FIELDS = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0, "activation_dropout": 0.0}


def experiment(attention: str, **changes) -> Experiment:
    sizes = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "hidden_dropout_prob": 0.0,
        "fields": FIELDS,
    }
    values = {"steps": 4, "batch": 2, "lr": 1e-3, "eval_every": 4, "save_every": 4, "log_every": 1, "tracker": "none"}
    data = DataConfig("python", {"max_bytes": 300_000}, length=32, eval_rows=4)
    learning = TrainConfig(**values | {"threads": 1} | changes)
    return Experiment("test", "lm", data, ModelConfig("adaptive_lm", attention, **sizes), learning)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_each_is_what_it_is_alone(tmp_path: Path) -> None:
    runs = {tmp_path / name: experiment(name) for name in ("cosformer", "softmax")}
    train_in_turns(runs)
    train(experiment("softmax"), tmp_path / "alone", quiet=True)
    assert losses(tmp_path / "softmax") == losses(tmp_path / "alone") != losses(tmp_path / "cosformer")
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    assert [result["steps"] for result in results] == [4, 4]


def test_one_that_fails_ends_the_other(tmp_path: Path) -> None:
    runs = {tmp_path / "good": experiment("cosformer"), tmp_path / "bad": experiment("no_such_attention")}
    with pytest.raises(RuntimeError, match=r"training into .*bad failed"):
        train_in_turns(runs)


def test_they_need_the_same_number_of_updates(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="same number of updates"):
        train_in_turns({tmp_path / "a": experiment("relu"), tmp_path / "b": experiment("relu", steps=5)})


def test_time_spent_waiting_does_not_count(tmp_path: Path, monkeypatch) -> None:
    """A clock that goes on by a thousand seconds at each wait, and not otherwise."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def wait() -> None:
        now[0] += 1000.0

    assert train(experiment("cosformer"), tmp_path / "run", quiet=True, wait=wait)["seconds"] == 0.0
    assert now[0] == 4000.0
