"""Many runs at a glance: where each stands, the score it is judged by, and what tells them apart."""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosformer.experiment import Experiment
from cosformer.runs import Run

__all__ = [
    "Metric",
    "Setup",
    "differences",
    "grouped",
    "is_sensible",
    "marked",
    "metric_of",
    "reads_words",
    "score_of",
    "settings",
    "setups",
    "shown",
    "status",
    "without_folder",
]

# settings that change how a run is done and recorded, not what comes out of it
_INCIDENTAL = {
    *("recipe", "note", "train.seed", "train.micro_batch", "train.eval_batch", "train.save_every", "train.log_every"),
    *("train.keep", "train.gradient_checkpointing", "train.compile", "train.strategy", "train.tracker"),
    *("train.diagnostics", "train.threads", "train.workers"),
}
_PATH, _HASH = "data.options.path", "data.options.sha256"
_OF_ATTENTION = "model.attention_options."  # each attention has its own
_SENSIBLE = 1000.0  # perplexity of a word from which on a model has not learned words


def status(run: Run) -> str:
    """finished, diverged, running, stopped, killed, failed or unknown."""
    return "diverged" if run.diverged else "finished" if run.status == "done" else run.status


def marked(run: Run) -> str:
    """The status, and whether a record of the run is not as the run wrote it."""
    return f"{status(run)}, altered" if run.altered else status(run)


def last_step(run: Run) -> int:
    """The last update that the files know of."""
    logged = max((line["step"] for line in run.metrics), default=0)
    return max(run.steps or 0, int(run.info.get("steps_done") or 0), logged)


def saved_step(run: Run) -> int | None:
    """The update of the newest checkpoint, from which a resume continues; None without one."""
    found = run.path.glob("checkpoints/checkpoint-*/complete.json") if run.path else ()
    steps = [path.parent.name.rpartition("-")[2] for path in found]
    return max((int(step) for step in steps if step.isdigit()), default=None)


@dataclass(frozen=True)
class Metric:
    """``name``: as in a run's scores. ``unit``: for display. ``scale``: converts the score to the unit."""

    name: str
    unit: str
    digits: int  # behind the point, of a score without a standard error
    higher_is_better: bool = False
    scale: float = 1.0

    def text(self, score: float) -> str:
        return f"{score:,.{self.digits}f}" if abs(score) < 1e6 else f"{score:.3g}"


_METRICS = {
    "accuracy": Metric("accuracy", "% accuracy", 2, True, 100.0),
    "word_perplexity": Metric("word_perplexity", "perplexity of a word", 2),
    "bits_per_byte": Metric("bits_per_byte", "bits per byte", 3),
    "loss": Metric("loss", "nats of loss", 3),
    "mae": Metric("mae", "mean absolute error", 3),
    "f1": Metric("f1", "F1", 3, True),
}


def reads_words(scores: dict[str, float]) -> bool:
    """Whether a language model's tokens are words: then a token and a word are equally hard to guess."""
    token, word = scores.get("perplexity", math.nan), scores.get("word_perplexity", math.nan)
    return math.isclose(token, word, rel_tol=0.01)


def is_sensible(word_perplexity: float) -> bool:
    """Whether a perplexity of a word means something: a model of bytes that is mediocre has one of millions."""
    return word_perplexity < _SENSIBLE


def worth_showing(scores: dict[str, float]) -> dict[str, float]:
    """The metrics to show. Byte models: bits per byte, and word perplexity only where it is meaningful."""
    if "bits_per_byte" not in scores or reads_words(scores):
        return scores
    kept = {name: x for name, x in scores.items() if name != "word_perplexity" or is_sensible(x)}
    return {"bits_per_byte": scores["bits_per_byte"]} | kept


def metric_of(run: Run) -> Metric | None:
    """The metric that ranks the run; None without scores. Byte models: bits per byte; word models: perplexity."""
    scores = run.scores.get(run.evaluation, {})
    if reads_words(scores):
        return _METRICS["word_perplexity"]
    if "bits_per_byte" not in scores and is_sensible(scores.get("word_perplexity", math.inf)):
        return _METRICS["word_perplexity"]
    return next((_METRICS[name] for name in ("accuracy", "bits_per_byte", "loss", "mae", "f1") if name in scores), None)


def score_of(run: Run, metric: Metric) -> float | None:
    """In the metric's unit, on the split that counts."""
    value = run.scores.get(run.evaluation, {}).get(metric.name)
    return None if value is None else metric.scale * value


def settings(experiment: Experiment) -> dict[str, Any]:
    """Every setting by its name on the command line: ``train.steps``, ``data.options.path``."""

    def flat(values: dict[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from flat(value, f"{before}{name}.")
            else:
                yield f"{before}{name}", value

    return dict(flat(dataclasses.asdict(experiment)))


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Name -> (ours, theirs) of the settings that differ; one that is missing is None."""
    names = dict.fromkeys([*theirs, *ours])
    return {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}


def grouped(runs: Iterable[Run], field: str) -> dict[str, list[Run]]:
    """The runs by their recipe or attention, in the order in which these come."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(getattr(run, field), []).append(run)
    return found


def varying_settings(runs: Sequence[Run]) -> list[str]:
    """The settings in which runs of one recipe differ, apart from attention and seed."""
    known = [(run, _known(run)) for run in runs]
    values: dict[str, dict[str, set[str]]] = {}  # by setting, and by attention where each has its own
    for name in dict.fromkeys(name for _, each in known for name in each if name != "model.attention"):
        for run, each in known:
            if run.experiment or name in each:
                whose = run.attention if name.startswith(_OF_ATTENTION) else ""
                values.setdefault(name, {}).setdefault(whose, set()).add(repr(each.get(name)))
    found = [name for name, each in values.items() if any(len(several) > 1 for several in each.values())]
    return [name for name in found if name != _HASH or _PATH not in found]


@dataclass(frozen=True)
class Setup:
    """Runs of one recipe that differ in attention and seed alone. ``values``: the settings that set them apart from the
    recipe's other setups."""

    recipe: str
    values: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """``lm-small, steps 200``."""
        return ", ".join([self.recipe, *(f"{short(name)} {shown(value)}" for name, value in self.values.items())])


def setups(runs: Sequence[Run]) -> list[Setup]:
    """By recipe, then by what the experiments differ in; every run is in exactly one."""
    found: list[Setup] = []
    for recipe, of_recipe in grouped(runs, "recipe").items():
        names = varying_settings(of_recipe)
        groups: dict[tuple[str, ...], list[Run]] = {}
        for run in of_recipe:
            groups.setdefault(tuple(repr(_known(run).get(name)) for name in names), []).append(run)
        paths = {repr(_known(group[0]).get(_PATH)) for group in groups.values()}
        # of one's own data the file says enough: sizes and columns follow from it
        telling = [_PATH] if _PATH in names and len(paths) == len(groups) else names
        for group in groups.values():
            known = _known(group[0])
            found.append(Setup(recipe, {name: known[name] for name in telling if name in known}, tuple(group)))
    return found


def short(name: str) -> str:
    """``train.steps`` is steps."""
    return name.rpartition(".")[2].replace("_", " ")


def shown(value: Any) -> str:
    """A setting's value for people: 1e-05 and 2,000, and a dash where the model or the data decide."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        return f"{value[:8]}…"  # a file's hash
    return f"{value:g}" if isinstance(value, float) else str(without_folder(value))


def without_folder(value: Any) -> Any:
    """``value``, or the last part of an absolute path: a report is read on other machines, by other people."""
    return Path(value).name if isinstance(value, str) and Path(value).expanduser().is_absolute() else value


def _known(run: Run) -> dict[str, Any]:
    """The settings that matter, as far as the run's record knows them."""
    if run.experiment is None:
        return {"model.attention": run.attention} | ({} if run.steps is None else {"train.steps": run.steps})
    return {name: value for name, value in settings(run.experiment).items() if name not in _INCIDENTAL}
