"""What a run came to, read from its folder or from a line of a committed summary, and means over seeds."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosformer.lab.records import Curve, Run, read_runs

SUMMARY_FILE = "runs.jsonl"


@dataclass(frozen=True)
class Outcome:
    """``scores``: by evaluation and metric. ``learned``: by evaluation, whether it beat the model that ignores its input.
    ``train`` and ``valid``: the loss on the way."""

    recipe: str
    task: str
    attention: str
    seed: int
    status: str
    scores: dict[str, dict[str, float]]
    learned: dict[str, bool]
    train: Curve
    valid: Curve
    seconds: float | None
    command: str
    machine: dict[str, Any]
    note: str

    @property
    def cell(self) -> tuple[str, str, int]:
        return self.recipe, self.attention, self.seed


@dataclass(frozen=True)
class Mean:
    """``error``: the standard error over ``seeds``, None of a single one. ``learned``: in how many seeds it learned."""

    value: float
    error: float | None
    seeds: int
    learned: int


def read_outcomes(runs: Sequence[Path], results: Path | None) -> tuple[list[Outcome], list[str]]:
    """Of run folders and of the summary in ``results``; a run that is in both counts once. And what was skipped."""
    found, problems = read_runs(runs)
    outcomes = {outcome.cell: outcome for outcome in map(_of_run, found)}
    if results is not None and (results / SUMMARY_FILE).exists():
        lines, more = _read_summary(results / SUMMARY_FILE)
        problems += more
        for outcome in lines:
            outcomes.setdefault(outcome.cell, outcome)
    return list(outcomes.values()), problems


def mean(outcomes: Sequence[Outcome], recipe: str, attention: str, evaluation: str, metric: str) -> Mean | None:
    """Over the seeds of one recipe and attention; None: not run."""
    chosen = [x for x in outcomes if (x.recipe, x.attention) == (recipe, attention)]
    scored = [x for x in chosen if metric in x.scores.get(evaluation, {})]
    if not scored:
        return None
    values = [x.scores[evaluation][metric] for x in scored]
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(statistics.fmean(values), error, len(values), sum(x.learned.get(evaluation, True) for x in scored))


def _of_run(run: Run) -> Outcome:
    result = run.result or {}
    names = [line["name"] for line in run.metrics if line["kind"] == "eval"]
    return Outcome(
        recipe=run.recipe,
        task=run.task,
        attention=run.attention,
        seed=run.seed,
        status=run.status,
        scores=_scores(result.get("scores")),
        learned=result.get("learned") if isinstance(result.get("learned"), dict) else {},  # pyright: ignore
        train=run.train_curve(),
        valid=run.eval_curve(names[0]) if names else [],
        seconds=run.info.get("seconds"),
        command=str(run.info.get("command", "")),
        machine=run.info.get("machine") or {},
        note=run.experiment.note,
    )


def _read_summary(path: Path) -> tuple[list[Outcome], list[str]]:
    outcomes, problems = [], []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not text.strip():
            continue
        try:
            outcomes.append(_of_line(json.loads(text)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{path} line {number} cannot be used ({type(error).__name__}: {error})")
    return outcomes, problems


def _of_line(line: dict[str, Any]) -> Outcome:
    return Outcome(
        recipe=line["recipe"],
        task=line["task"],
        attention=line["attention"],
        seed=int(line["seed"]),
        status=line["status"],
        scores=_scores(line["scores"]),
        learned=dict(line["learned"]),
        train=[(int(step), float(loss)) for step, loss in line.get("train_loss", [])],
        valid=[(int(step), float(loss)) for step, loss in line.get("valid_loss", [])],
        seconds=line.get("seconds"),
        command=str(line.get("command", "")),
        machine=line.get("machine") or {},
        note=str(line.get("note", "")),
    )


def _scores(found: Any) -> dict[str, dict[str, float]]:
    """Finite numbers only: one that is none has no mean."""
    scores = found if isinstance(found, dict) else {}
    return {
        name: {k: float(v) for k, v in values.items() if isinstance(v, int | float) and math.isfinite(v)}
        for name, values in scores.items()
        if isinstance(values, dict)
    }
