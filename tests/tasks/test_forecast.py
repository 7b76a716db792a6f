"""Forecasting: every step of a split is scored once, from steps before it alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cosformer.experiment import DataConfig, ModelConfig
from cosformer.tasks.forecast import Forecast


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forecast:
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.standard_normal((300, 2)).cumsum(0), lengths=np.array([100, 140, 60]))
    return Forecast(DataConfig("series", {"path": str(tmp_path / "a.npz"), "valid": 0.2, "test": 0.2}, length=16))


@pytest.mark.parametrize("steps", [0, 1, 5, 15])
def test_every_step_of_a_split_is_scored_once(task: Forecast, steps: int) -> None:
    name = f"valid@{steps}" if steps else "valid"
    found: list[torch.Tensor] = []
    for start in range(0, task.eval_size(name), 4):
        batch = task.eval_batch(name, start, start + 4)
        assert batch["input_values"].shape[1] + (steps or 0) <= 16
        found.append(batch["targets" if steps else "labels"].reshape(-1, 2))
    values = torch.cat(found)
    scored = values[values.isfinite().all(1)]
    split = task.dataset.splits["valid"]
    assert split.labels is not None
    expected = np.concatenate([row[at:] for row, at in zip(split.tokens, split.labels, strict=True)])
    assert sorted(map(tuple, scored.tolist())) == sorted(map(tuple, expected.tolist()))


def test_the_baseline_is_the_last_value(task: Forecast) -> None:
    split = task.dataset.splits["test"]
    assert split.labels is not None
    steps = [np.abs(row[at:] - row[at - 1 : -1]) for row, at in zip(split.tokens, split.labels, strict=True)]
    expected = (np.concatenate(steps) / task.channels.scale).mean()
    base = task.baseline("test")
    assert base.name == "last value" and base.score == pytest.approx(expected, rel=1e-5) and base.error > 0


def test_an_untrained_model_scores_as_the_baseline(task: Forecast) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    fields = {"adaptive_cutoffs": None, "scale_embedding": False}
    model = task.head(task.config(ModelConfig("adaptive_lm", fields=fields, **sizes))).eval()  # pyright: ignore
    for name in task.final:
        with torch.no_grad():
            sums = task.sums(model, task.eval_batch(name, 0, task.eval_size(name)))
        assert task.scores(name, sums)["mae"] == pytest.approx(task.baseline(name).score, rel=1e-4)


def test_names_that_are_no_evaluation_are_refused(task: Forecast) -> None:
    for name in ("valid@16", "valid@x", "later"):
        with pytest.raises(ValueError, match=r"a split .* or one with the steps to forecast at once, from 1 to 15"):
            task.eval_size(name)
