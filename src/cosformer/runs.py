"""The records of runs, read from run folders or from files with a run a line. Loads no torch.

```python
import cosformer

finished = [run for run in cosformer.runs.load("runs") if run.finished]
```
"""

import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from cosformer import machine
from cosformer.experiment import EXPERIMENT_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE, Experiment, load_experiment
from cosformer.json_files import read_lines, read_object, write_lines
from cosformer.records_file import RecordsFile

__all__ = [
    "NOT_RUN",
    "Curve",
    "Run",
    "SeedScores",
    "find_runs",
    "load",
    "read_run",
    "read_runs",
    "seed_scores",
    "thinned",
    "with_error",
    "write_runs",
]

Curve = list[tuple[int, float]]  # (step, value), steps rising
CURVE_POINTS = 40
NOT_RUN = "not run"
_DIVERGED = "is not a number"  # in the reason of a run that failed for that
# besides those of Run without a default
_NEEDED = ("scores", "baseline", "learned", "cpu_seconds", "machine", "command")


@dataclass(frozen=True)
class Run:
    """One run. The fields down to ``note`` make a line of runs.jsonl, ``extra`` being what else the line said.

    status: done or diverged; of a folder also running, stopped (asked to), killed (it says running, and its process is
    gone), failed or unknown. scores: by evaluation and metric, finite numbers only. baseline: by evaluation, the model
    that ignores its input. learned: by evaluation, whether the run beat it. score: the metric that counts. From a
    folder only: path, experiment, info (run.json), metrics (the readable lines of metrics.jsonl by step, where a step
    logged again after a resume counts once) and altered (a sentence for each record that is not as the run wrote it).
    """

    recipe: str
    task: str
    attention: str
    seed: int
    status: str
    reason: str | None = None
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    baseline: dict[str, dict[str, Any]] = field(default_factory=dict)
    learned: dict[str, bool] = field(default_factory=dict)
    score: str | None = None
    steps: int | None = None
    tokens: int | None = None
    parameters: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_memory_mb: float | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    date: str | None = None
    commit: str | None = None
    command: str = ""
    train_loss: Curve = field(default_factory=list)
    valid_loss: Curve = field(default_factory=list)
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    experiment: Experiment | None = None
    info: dict[str, Any] = field(default_factory=dict)
    metrics: tuple[dict[str, Any], ...] = ()
    altered: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name if self.path else f"{self.recipe}-{self.attention}-seed{self.seed}"

    @property
    def key(self) -> tuple[str, str, int]:
        """Which run it is: two with the same recipe, attention and seed are one."""
        return self.recipe, self.attention, self.seed

    @property
    def finished(self) -> bool:
        return self.status == "done" and bool(self.scores)

    @property
    def diverged(self) -> bool:
        """Whether it ended because its loss or a gradient was not a number: a result, not a mishap."""
        return self.status == "diverged" or (self.status == "failed" and _DIVERGED in (self.reason or ""))

    @property
    def broken(self) -> bool:
        """Whether it ended without a result that means anything."""
        return not self.diverged and self.status in ("failed", "killed", "unknown")

    @property
    def evaluation(self) -> str:
        """The evaluation that counts: the test split where the run scored it, otherwise the validation split."""
        return "test" if "test" in self.scores else "valid"

    def train_curve(self, metric: str = "loss") -> Curve:
        """The training log: loss, lr, grad_norm, tokens_per_second … (lines of runs.jsonl have the loss only)."""
        if not self.metrics:
            return self.train_loss if metric == "loss" else []
        lines = (line for line in self.metrics if line["kind"] == "train")
        return [(line["step"], value) for line in lines if (value := finite(line.get(metric))) is not None]

    def eval_curve(self, evaluation: str, metric: str = "loss") -> Curve:
        """The evaluations on the way, as ``eval_curve("valid", "perplexity")``; needs the folder."""
        lines = (line for line in self.metrics if line["kind"] == "eval" and line.get("name") == evaluation)
        return [(line["step"], value) for line in lines if (value := finite(line["scores"].get(metric))) is not None]

    def line(self) -> dict[str, Any]:
        """The run as a line of runs.jsonl: curves thinned, floats to six digits, which is all they tell."""
        kept = {name: getattr(self, name) for name in _LINE}
        kept |= {"train_loss": thinned(self.train_loss), "valid_loss": thinned(self.valid_loss)}
        said = {name: value for name, value in kept.items() if value is not None or name == "reason"}
        return _rounded(said | self.extra)


_LINE = [
    one.name for one in fields(Run) if one.name not in ("extra", "path", "experiment", "info", "metrics", "altered")
]


def run_of_line(line: dict[str, Any]) -> Run:
    """``line`` is one of runs.jsonl; fields that are unknown here are kept."""
    missing = [key for key in (*_LINE[:5], *_NEEDED) if key not in line]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    known: dict[str, Any] = {key: value for key, value in line.items() if key in _LINE}
    for key in ("train_loss", "valid_loss"):
        known[key] = [(int(step), float(loss)) for step, loss in line.get(key, [])]
    known |= {"seed": int(line["seed"]), "scores": finite_scores(line["scores"])}
    return Run(**known, extra={key: value for key, value in line.items() if key not in _LINE})


def read_run(path: Path) -> tuple[Run | None, list[str]]:
    """The run in folder ``path``, and what could not be read of it, one sentence each. None: it is no run at all."""
    try:
        experiment = load_experiment(path)
    except (FileNotFoundError, ValueError) as error:
        return None, [str(error)]
    problems: list[str] = []
    info = _readable(path / RUN_FILE, read_object(path / RUN_FILE, problems, required=True), problems)
    result = read_object(path / RESULT_FILE, problems, required=info.get("status") == "done")
    result = None if result is None else _readable(path / RESULT_FILE, result, problems)
    if result is not None and not isinstance(result.get("scores"), dict):
        problems.append(f"{path / RESULT_FILE} holds no scores")
        result = None
    given: dict[str, Any] = {
        name: value for name, value in (info | (result or {})).items() if name in _LINE and value is not None
    }
    own: dict[str, Any] = {
        "recipe": experiment.recipe,
        "task": experiment.task,
        "attention": experiment.model.attention,
        "seed": experiment.train.seed,
        **_ending(info, result),
        "scores": finite_scores((result or {}).get("scores")),
        "note": experiment.note,
    }
    metrics = _read_metrics(path / METRICS_FILE, problems, required=result is not None)
    altered = tuple(RecordsFile(path).altered())
    problems += altered
    run = Run(**given | own, path=path, experiment=experiment, info=info, metrics=metrics, altered=altered)
    evaluated = next((line["name"] for line in metrics if line["kind"] == "eval"), "valid")
    return replace(run, train_loss=run.train_curve(), valid_loss=run.eval_curve(evaluated)), problems


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Every readable run of ``paths`` in order, and what was skipped. A path: a run folder or a file of lines."""
    runs, problems = [], []
    for path in paths:
        if path.is_file():
            found, trouble = _read_run_lines(path)
        else:
            run, trouble = read_run(path)
            found = [] if run is None else [run]
        runs += found
        problems += trouble
    return runs, problems


def write_runs(path: Path, runs: Iterable[Run], *, append: bool = False) -> None:
    """One line each, by recipe, attention and seed. ``append``: keep what the file holds."""
    kept = [line for _, line in read_lines(path)[0]] if append else []
    write_lines(path, [*kept, *(run.line() for run in sorted(runs, key=lambda run: run.key))])


def load(*paths: str | PathLike[str]) -> list[Run]:
    """Every run below ``paths``: run folders, folders of runs, files of lines. Warns about unreadable ones."""
    places = [Path(path) for path in paths]
    for place in places:
        if not place.exists():
            raise FileNotFoundError(f"{place} does not exist; give a run's folder, a folder of runs or a file of runs")
    runs, problems = read_runs(run for place in places for run in find_runs(place) or [place])
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return runs


def find_runs(folder: Path) -> list[Path]:
    """The run folders at or below ``folder``, by name; none when it does not exist."""
    found = {path.parent for path in folder.rglob(EXPERIMENT_FILE)}
    return sorted(found | {path.parent for path in folder.glob(f"*/{EXPERIMENT_FILE}")})  # rglob follows no links


def thinned(curve: Curve, points: int = CURVE_POINTS) -> Curve:
    """At most ``points`` points of the curve, evenly spread, its first and last among them."""
    if len(curve) <= points:
        return curve
    return [curve[round(i * (len(curve) - 1) / (points - 1))] for i in range(points)]


@dataclass(frozen=True)
class SeedScores:
    """One attention's scores, one a seed. ``learned``: how many of them beat the model that ignores its input."""

    name: str
    values: tuple[float, ...]
    learned: int

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def error(self) -> float:
        """The standard error of the mean; not a number from a single seed."""
        return statistics.stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else math.nan

    def __str__(self) -> str:
        """``4.712 ± 0.013``, ``4.71 (one seed)`` or ``not run``."""
        if not self.values:
            return NOT_RUN
        one = " (one seed)" if len(self.values) == 1 else ""
        return f"{with_error(self.mean, self.error)}{one}"


def seed_scores(runs: Sequence[Run], recipe: str, attention: str, evaluation: str, metric: str) -> SeedScores:
    """One metric over the seeds of one recipe and attention; without values where none was run."""
    chosen = [run for run in runs if (run.recipe, run.attention) == (recipe, attention)]
    scored = [run for run in chosen if metric in run.scores.get(evaluation, {})]
    values = tuple(run.scores[evaluation][metric] for run in scored)
    return SeedScores(attention, values, sum(run.learned.get(evaluation, True) for run in scored))


def with_error(mean: float, error: float | None, digits: int | None = None) -> str:
    """``mean ± error`` to the second digit of the error, unless ``digits`` says how many; without one, four digits."""
    if error is None or math.isnan(error):
        return f"{mean:.4g}" if digits is None else f"{mean:,.{digits}f}"
    if digits is None:
        digits = max(0, 1 - math.floor(math.log10(error))) if error > 0 else 3
    return f"{mean:,.{digits}f} ± {error:,.{digits}f}"


def _ending(info: dict[str, Any], result: dict[str, Any] | None) -> dict[str, Any]:
    """Status and reason. A run that says it is running was killed if its process is gone: it had no time to say so."""
    if result is not None:
        return {"status": "done", "reason": None}
    status = str(info.get("status", "unknown"))
    if status == "running" and machine.is_alive(info) is False:
        return {"status": "killed", "reason": f"no process {info['pid']}"}
    reason = "it has no readable result" if status == "done" else info.get("reason")
    return {"status": "unknown" if status == "done" else status, "reason": reason}


def _read_run_lines(path: Path) -> tuple[list[Run], list[str]]:
    lines, problems = read_lines(path)
    runs = []
    for number, line in lines:
        try:
            runs.append(run_of_line(line))
        except (ValueError, TypeError) as error:
            problems.append(f"{path} line {number} cannot be used: {error}")
    return runs, problems


def _read_metrics(path: Path, problems: list[str], *, required: bool) -> tuple[dict[str, Any], ...]:
    lines, trouble = read_lines(path) if required or path.exists() else ([], [])  # stopped before its first line
    problems += trouble
    kept: dict[tuple[int, str, str], dict[str, Any]] = {}
    for number, line in lines:
        whole = isinstance(line.get("kind"), str) and type(line.get("step")) is int
        if not whole or (line["kind"] == "eval" and not (isinstance(line.get("scores"), dict) and "name" in line)):
            problems.append(f"{path} line {number} cannot be read: {str(line)[:60]}")
        else:
            kept[line["step"], line["kind"], str(line.get("name", ""))] = line
    return tuple(sorted(kept.values(), key=lambda line: line["step"]))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


# --- the fields of the records: one that is not what it must be is named and left out, and the rest is read

_KINDS: dict[str, Any] = {
    **dict.fromkeys(("steps", "steps_done", "tokens", "parameters", "pid", "processes", "seed"), int),
    **dict.fromkeys(("seconds", "cpu_seconds", "peak_memory_mb"), int | float),
    **dict.fromkeys(("status", "reason", "started", "host", "date", "commit", "command", "score", "score_name"), str),
    **dict.fromkeys(("best", "machine", "scores", "baseline", "learned"), dict),
    "higher_is_better": bool,
}
_WORDS = {int: "a whole number", int | float: "a number", str: "text", dict: "an object", bool: "true or false"}


def _readable(path: Path, record: dict[str, Any] | None, problems: list[str]) -> dict[str, Any]:
    """The valid fields of ``record``; each invalid one adds a line to ``problems``, naming ``path``."""
    kept = {}
    for name, value in (record or {}).items():
        kind = _KINDS.get(name)
        if kind is None or value is None or _is(value, kind):
            kept[name] = value
        else:
            problems.append(f"{path}: {name} is {str(value)[:40]}, not {_WORDS[kind]}; it is left out")
    for name, inside in (("best", int | float), ("baseline", dict), ("learned", bool)):
        if wrong := [key for key, value in (kept.get(name) or {}).items() if not _is(value, inside)]:
            problems.append(f"{path}: {name} has no {wrong[0]} that is {_WORDS[inside]}; it is left out")
            del kept[name]
    return kept


def _is(value: Any, kind: Any) -> bool:
    """JSON's true and false are no numbers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def finite_scores(found: Any) -> dict[str, dict[str, float]]:
    """Finite numbers only: one that is none has no mean."""
    scores = found if isinstance(found, dict) else {}
    return {
        name: {metric: float(x) for metric, x in values.items() if finite(x) is not None}
        for name, values in scores.items()
        if isinstance(values, dict)
    }


def finite(value: Any) -> float | None:
    """A finite number as it stands, otherwise None: a loss that is not a number has no place on a curve."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
