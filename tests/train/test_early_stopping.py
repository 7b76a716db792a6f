"""A run that stops when its evaluations no longer improve: at the same update however often it was interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosformer.train import resume, train
from cosformer.train.engine import Engine

# without learning the first evaluation is the best: of those every 4 updates the third, at 12, is the second without a
# better score
IDLE = {"steps": 40, "lr": 0.0, "warmup": 0, "early_stopping": 2}


def test_it_stops_after_so_many_evaluations_without_a_better_score(small, tmp_path: Path, metric_lines) -> None:
    run = tmp_path / "run"
    found = train(small(**IDLE), run, quiet=True)
    assert found["steps"] == 12 and found["stopped_early"] is True and found["scores"]
    assert json.loads((run / "run.json").read_text())["status"] == "done"
    assert "12 updates (stopped early, of 40)" in (run / "best" / "README.md").read_text()
    lines, made = metric_lines(run), json.loads((run / "result.json").read_text())
    # killed after its last checkpoint: no further update is made
    (run / "result.json").unlink()
    again = resume(run, quiet=True)
    assert {key: again[key] for key in ("steps", "scores", "stopped_early")} == {
        key: made[key] for key in ("steps", "scores", "stopped_early")
    }
    assert metric_lines(run) == lines
    # who asks for more updates gets them, up to the next evaluation that is no better
    assert resume(run, steps=60, quiet=True)["steps"] == 16


@pytest.mark.parametrize("at", [6, 11])
def test_interrupted_and_resumed_it_stops_at_the_same_update(
    small, tmp_path: Path, metric_lines, monkeypatch, at: int
) -> None:
    whole = train(small(**IDLE), tmp_path / "whole", quiet=True)
    calls, step = iter(range(at)), Engine.training_step

    def interrupted(engine: Engine, *args: Any, **kwargs: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return step(engine, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Engine, "training_step", interrupted)
        train(small(**IDLE), tmp_path / "cut", quiet=True)
    found = resume(tmp_path / "cut", quiet=True)
    assert found["steps"] == 12 and found["scores"] == whole["scores"]
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")


def test_a_run_that_improves_is_left_alone(small, tmp_path: Path) -> None:
    found = train(small(steps=12, eval_every=4, early_stopping=1), tmp_path / "run", quiet=True)
    assert found["steps"] == 12 and "stopped_early" not in found
