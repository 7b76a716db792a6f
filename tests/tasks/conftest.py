"""Fixtures: a home of its own for every test, small sets in the files' own formats, and a loop over an evaluation."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.tasks import build_task
from cosformer.tasks.base import Task

TINY = ModelConfig(
    "adaptive_lm",
    num_hidden_layers=1,
    hidden_size=16,
    num_attention_heads=2,
    intermediate_size=32,
    hidden_dropout_prob=0.0,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("COSFORMER_HOME", str(folder))
    return folder


@pytest.fixture
def wikitext(tmp_path: Path) -> str:
    """A folder in WikiText's format: some hundred words, dealt from a seed, one line blank now and then."""
    rng = np.random.default_rng(7)
    words = ["the", "cat", "sat", "on", "a", "mat", "<unk>", "naïve", ",", "."]
    folder = tmp_path / "wikitext"
    folder.mkdir()
    for split, lines in {"train": 30, "valid": 9, "test": 5}.items():
        rows = [[words[i] for i in rng.integers(0, len(words), rng.integers(0, 12))] for _ in range(lines)]
        text = "".join(" " + "".join(f"{word} " for word in row) + "\n" for row in rows)
        (folder / f"wiki.{split}.tokens").write_text(text, encoding="utf-8")
    return str(folder)


@pytest.fixture
def make() -> Callable[..., Task]:
    """The task of a data set, as an experiment has it."""

    def made(
        task: str,
        name: str,
        seed: int = 0,
        length: int | None = None,
        eval_rows: int | None = None,
        full_test: bool = False,
        masked: float = 0.15,
        long: Literal["refuse", "cut", "windows"] = "refuse",
        **options,
    ) -> Task:
        data = DataConfig(name, options, length, eval_rows, full_test, masked, long)
        return build_task(Experiment("test", task, data, TINY, TrainConfig(steps=1, batch=2, lr=0.1, seed=seed)))

    return made


@pytest.fixture
def fit() -> Callable[..., torch.nn.Module]:
    """The model after some updates on one batch, ready to be scored."""

    def fitted(model: torch.nn.Module, batch: dict[str, torch.Tensor], updates: int, lr: float) -> torch.nn.Module:
        optimizer = torch.optim.Adam(model.train().parameters(), lr=lr)
        for _ in range(updates):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        return model.eval()

    return fitted


@pytest.fixture
def sums() -> Callable[..., dict[str, float]]:
    """The sums of a whole evaluation, ``batch`` rows at a time, as the engine adds them up."""

    def summed(task: Task, model: torch.nn.Module, name: str, batch: int = 3) -> dict[str, float]:
        total: dict[str, float] = {}
        with torch.no_grad():
            for start in range(0, task.eval_size(name), batch):
                for key, value in task.sums(model, task.eval_batch(name, start, start + batch)).items():
                    total[key] = total.get(key, 0.0) + value
        return total

    return summed
