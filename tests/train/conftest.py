"""A small language model on a little text: two seconds a run."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cosformer.experiment import METRICS_FILE, DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.train.metrics import read_lines


@pytest.fixture(autouse=True)
def surroundings(data_home: None, one_thread: None) -> None:
    """Prepared data in a folder of its own; one thread."""


@pytest.fixture
def small() -> Callable[..., Experiment]:
    """An experiment with some fields of its training, model or data changed."""

    def build(
        *, task: str = "lm", model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **train: Any
    ) -> Experiment:
        # a masked language model has a host of its own
        preset = {"preset": "roberta_base"} if task == "mlm" else {"preset": "adaptive_lm", "fields": PLAIN}
        sizes = {
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "hidden_dropout_prob": 0.1,
        }
        rows = {"name": "python", "options": {"max_bytes": 300_000}, "length": 64, "eval_rows": 16}
        steps = {"steps": 12, "batch": 4, "lr": 3e-3, "warmup": 3, "eval_every": 4, "save_every": 5, "log_every": 2}
        return Experiment(
            "test",
            task,
            DataConfig(**rows | (data or {})),
            ModelConfig(**preset | sizes | (model or {})),
            TrainConfig(**steps | {"tracker": "none", "threads": 1} | train),
        )

    return build


PLAIN = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0, "activation_dropout": 0.0}
TIMES = ("seconds", "tokens_per_second")  # everything else is the same in a repeated run


@pytest.fixture
def metric_lines() -> Callable[[Path], list[dict[str, Any]]]:
    """The metrics of a run apart from times."""

    def lines(run: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if k not in TIMES} for line in read_lines(run / METRICS_FILE)]

    return lines


TRAIN = """
import sys
from pathlib import Path
from cosformer.experiment import from_json
from cosformer.train import train
train(from_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), quiet=True)
"""


@pytest.fixture
def start() -> Callable[..., subprocess.Popen]:
    """A run in a process of its own, which first does what ``before`` says."""

    def started(experiment: Experiment, run: Path, before: str = "") -> subprocess.Popen:
        described = run.with_suffix(".json")
        described.write_text(experiment.to_json())
        return subprocess.Popen(
            [sys.executable, "-c", before + TRAIN, described, run], stderr=subprocess.PIPE, text=True
        )

    return started
