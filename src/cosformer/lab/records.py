"""Runs that lie on the disk: what a training run wrote, read back as a value. Reads files only; loads no torch."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosformer.experiment import EXPERIMENT_FILE, Experiment, load_experiment

RUN_FILE, METRICS_FILE, RESULT_FILE = "run.json", "metrics.jsonl", "result.json"

Curve = list[tuple[int, float]]  # (step, value), steps rising


@dataclass(frozen=True)
class Run:
    """One run folder. ``info`` is run.json (empty: none there), ``metrics`` the readable lines of metrics.jsonl by step, where
    a step that was logged again after a resume counts once, ``result`` is result.json or None before the end."""

    path: Path
    experiment: Experiment
    info: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    result: dict[str, Any] | None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def recipe(self) -> str:
        return self.experiment.recipe

    @property
    def task(self) -> str:
        return self.experiment.task

    @property
    def attention(self) -> str:
        return self.experiment.model.attention

    @property
    def seed(self) -> int:
        return self.experiment.train.seed

    @property
    def status(self) -> str:
        """running, stopped, done or failed; "unknown" without a run.json."""
        return str(self.info.get("status", "unknown"))

    def score(self, evaluation: str, metric: str) -> float | None:
        """A final score, as ``score("test", "accuracy")``; None: the run has not come to it."""
        scores = (self.result or {}).get("scores", {}).get(evaluation, {})
        return _number(scores.get(metric)) if isinstance(scores, dict) else None

    def train_curve(self, metric: str = "loss") -> Curve:
        """What was logged while training: loss, lr, grad_norm, tokens_per_second …"""
        lines = (line for line in self.metrics if line["kind"] == "train")
        return [(line["step"], value) for line in lines if (value := _number(line.get(metric))) is not None]

    def eval_curve(self, evaluation: str, metric: str = "loss") -> Curve:
        """The evaluations on the way, as ``eval_curve("valid", "perplexity")``."""
        lines = (line for line in self.metrics if line["kind"] == "eval" and line.get("name") == evaluation)
        return [(line["step"], value) for line in lines if (value := _number(line["scores"].get(metric))) is not None]


def read_run(path: Path) -> tuple[Run | None, list[str]]:
    """The run in folder ``path``, and what could not be read of it, one sentence each. None: it is no run at all."""
    try:
        experiment = load_experiment(path)
    except (FileNotFoundError, ValueError) as error:
        return None, [str(error)]
    problems: list[str] = []
    info = _read_object(path / RUN_FILE, problems, required=True) or {}
    done = info.get("status") == "done"
    result = _read_object(path / RESULT_FILE, problems, required=done)
    if result is not None and not isinstance(result.get("scores"), dict):
        problems.append(f"{path / RESULT_FILE} holds no scores")
        result = None
    return Run(path, experiment, info, _read_metrics(path / METRICS_FILE, problems), result), problems


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Every readable run among ``paths``, in their order, and what was skipped."""
    runs, problems = [], []
    for path in paths:
        run, found = read_run(path)
        problems += found
        if run is not None:
            runs.append(run)
    return runs, problems


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or below ``folder``, by name; none when it does not exist."""
    found = {path.parent for path in folder.rglob(EXPERIMENT_FILE)}
    return sorted(found | {path.parent for path in folder.glob(f"*/{EXPERIMENT_FILE}")})  # rglob follows no links


def _read_object(path: Path, problems: list[str], required: bool) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            problems.append(f"{path} is missing")
        return None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, no JSON
        problems.append(f"{path} cannot be read: {error}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path} holds no JSON object")
        return None
    return value


def _read_metrics(path: Path, problems: list[str]) -> tuple[dict[str, Any], ...]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        problems.append(f"{path} is missing" if isinstance(error, FileNotFoundError) else f"{path}: {error}")
        return ()
    kept: dict[tuple[int, str, str], dict[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        value = read_metric(line)
        if value is None:
            problems.append(f"{path} line {number} cannot be read: {line[:60]}")
            continue
        kept[value["step"], value["kind"], str(value.get("name", ""))] = value
    return tuple(sorted(kept.values(), key=lambda value: value["step"]))


def read_metric(line: str) -> dict[str, Any] | None:
    """The line as a metric, or None when it is not one."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str) or type(value.get("step")) is not int:
        return None
    return None if value["kind"] == "eval" and not isinstance(value.get("scores"), dict) else value


def _number(value: Any) -> float | None:
    """A finite number as it stands, otherwise None: a loss that is not a number has no place on a curve."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
