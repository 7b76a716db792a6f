"""A small language model on a little text: two seconds a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig


@pytest.fixture(autouse=True)
def surroundings(data_home: None, one_thread: None) -> None:
    """Prepared data in a folder of its own; one thread."""


@pytest.fixture
def small() -> Callable[..., Experiment]:
    """An experiment with some fields of its training, model or data changed."""

    def build(*, model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **train: Any) -> Experiment:
        sizes = {"layers": 2, "width": 32, "heads": 2, "feed_forward": 64, "dropout": 0.1}
        plain = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0, "activation_dropout": 0.0}
        rows = {"options": {"max_bytes": 300_000}, "length": 64, "eval_rows": 16}
        steps = {"steps": 12, "batch": 4, "lr": 3e-3, "warmup": 3, "eval_every": 4, "save_every": 5, "log_every": 2}
        return Experiment(
            "test",
            "lm",
            DataConfig("python", **rows | (data or {})),
            ModelConfig("adaptive_lm", **{"fields": plain} | sizes | (model or {})),
            TrainConfig(**steps | {"tracker": "none", "threads": 1} | train),
        )

    return build


TIMES = ("seconds", "tokens_per_second")  # everything else is the same in a repeated run


def lines(run: Path) -> list[dict[str, Any]]:
    """The metrics of ``run`` apart from times."""
    from cosformer.train.metrics import METRICS_FILE, read_lines

    return [{k: v for k, v in line.items() if k not in TIMES} for line in read_lines(run / METRICS_FILE)]


@pytest.fixture
def metric_lines() -> Callable[[Path], list[dict[str, Any]]]:
    return lines
