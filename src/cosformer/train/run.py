"""A run: a folder that holds its experiment, its metrics, its checkpoints and, at the end, its result."""

import contextlib
import json
import os
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import set_seed
from transformers.utils.logging import disable_progress_bar

from cosformer import machine
from cosformer.experiment import EXPERIMENT_FILE, LOCK_FILE, RESULT_FILE, RUN_FILE, Experiment, load_experiment
from cosformer.extras import require
from cosformer.json_files import read_object
from cosformer.locks import locked
from cosformer.records_file import RecordsFile
from cosformer.tasks import build_task
from cosformer.tasks.base import Baseline, Task
from cosformer.tasks.scores import confusion_matrix
from cosformer.train import checkpoints, settings
from cosformer.train.callbacks import Progress, StartsAt, StopOnSignal
from cosformer.train.engine import Engine, TrainingFailed, evaluation_sums, unreadable
from cosformer.train.mesh import Scored
from cosformer.train.schedules import schedule
from cosformer.train.start import start_model

SCORED_WEIGHTS = "last"  # of a finished run, as Long Range Arena does
LEARNED_ERRORS = 3.0  # standard errors by which a model beats the baseline to have learned


def train(experiment: Experiment, run: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Train from the start into the new folder ``run``; returns what ``result.json`` holds (or ``run.json`` if
    stopped)."""
    _refuse_existing(run)
    _set_threads(experiment)
    task = build_task(experiment)
    if experiment.train.class_weights == "balanced":
        task.class_weights()  # refuses a task without classes before anything is written
    if experiment.train.early_stopping is not None and task.selection == "test":
        raise ValueError(f"early_stopping needs a validation split, which data set {experiment.data.name!r} lacks")
    model = start_model(task, experiment)
    if _first_process():
        run.mkdir(parents=True, exist_ok=True)
    with _in_use(run):
        _refuse_existing(run)  # another process may have begun it while we prepared the data
        if _first_process():
            settings.begin(run, experiment)
        return _train_and_score(experiment, task, model, run, None, quiet)


def _refuse_existing(run: Path) -> None:
    if (run / EXPERIMENT_FILE).exists() and _first_process():
        raise FileExistsError(
            f"{run} holds a run already; continue it with `cosformer resume {run}`, or choose another --run"
        )


def _in_use(run: Path) -> AbstractContextManager[None]:
    """A run's folder belongs to one job: the first of its processes holds the lock."""
    return locked(run / LOCK_FILE, f"the run {run}") if _first_process() else nullcontext()


def resume(
    run: Path,
    *,
    steps: int | None = None,
    sequence_parallel: int | None = None,
    apply_changes: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Continue from the last complete checkpoint: the result is that of a run that was never stopped.

    ``steps``: train up to this update instead, also where the run has ended; see :func:`lengthen`.
    ``sequence_parallel``: with rows over so many processes instead; checkpoints are the same for any number, and
    results but for rounding and dropout. ``apply_changes``: continue with the settings edited in ``experiment.json``
    (an error otherwise) and record them.
    """
    load_experiment(run)  # says at once if this is no run
    if apply_changes and steps is None and (run / RESULT_FILE).exists():
        raise ValueError(f"{run} has finished, and changes apply to updates to come; give --steps N, too")
    if steps is None and not RecordsFile(run).edited() and (result := _result(run)):
        return result
    with _in_use(run):
        if _first_process():
            settings.check(run, apply_changes=apply_changes)
        experiment = load_experiment(run)
        if steps is not None:
            experiment = lengthen(run, steps)
        if sequence_parallel is not None:
            experiment = replace(experiment, train=replace(experiment.train, sequence_parallel=sequence_parallel))
        if result := _result(run):
            return result
        _set_threads(experiment)
        task = build_task(experiment)
        model = start_model(task, experiment)
        checkpoint = _newest(run)
        if (run / RESULT_FILE).exists() and _first_process():
            begin = "its first update" if checkpoint is None else checkpoint.name
            print(f"{_damaged_result(run)}; it is made again from {begin} on", file=sys.stderr)
            RecordsFile(run).write(RESULT_FILE, None)
        return _train_and_score(experiment, task, model, run, checkpoint, quiet)


def _result(run: Path) -> dict[str, Any] | None:
    """What ``result.json`` holds; None where there is none, or a damaged one."""
    return None if _damaged_result(run) else read_object(run / RESULT_FILE, [], required=False)


def _damaged_result(run: Path) -> str:
    """What is wrong with ``result.json``; empty: nothing, or there is none."""
    problems: list[str] = []
    result = read_object(run / RESULT_FILE, problems, required=False)
    if result is None:
        return "".join(problems)
    if altered := RecordsFile(run).disagreement(RESULT_FILE):
        return altered
    scores = result.get("scores")
    if not (isinstance(scores, dict) and scores and all(isinstance(one, dict) for one in scores.values())):
        return f"{run / RESULT_FILE} holds no scores"
    kinds = {"score": str, "steps": int, "parameters": int, "seconds": int | float, "baseline": dict, "learned": dict}
    bad = [name for name, kind in kinds.items() if not isinstance(result.get(name), kind)]
    bad += [name for name in ("baseline", "learned") if name not in bad and result[name].keys() != scores.keys()]
    return f"{run / RESULT_FILE} has no {bad[0]} that can be read" if bad else ""


def lengthen(run: Path, steps: int) -> Experiment:
    """Give the run ``steps`` updates in all; returns its experiment. From its last checkpoint on the learning rate is
    that of a run of so many updates: where it had fallen to its end it rises again, so the result is not that of a run
    of ``steps`` updates from the start. The result that is there is kept as ``result-STEPS.json``."""
    experiment = load_experiment(run)
    before = experiment.train.steps
    longer = replace(experiment, train=replace(experiment.train, steps=steps))
    if not _first_process():  # the first may have written it already
        return longer
    if steps <= before:
        raise ValueError(f"{run} has {before:,} updates; --steps {steps:,} is no more than that")
    last = checkpoints.newest(run / "checkpoints")[0]
    done = 0 if last is None else checkpoints.step_of(last)
    rates = [x.train.lr * schedule(x.train)(done) for x in (experiment, longer)]
    print(
        f"{run}: on from update {done:,} to {steps:,}, with the '{experiment.train.schedule}' schedule of {steps:,} "
        f"updates: the learning rate there is {rates[1]:.3g} (it was {rates[0]:.3g})",
        file=sys.stderr,
    )
    records = RecordsFile(run)
    if (run / RESULT_FILE).exists():
        records.write(f"result-{before}.json", (run / RESULT_FILE).read_text(encoding="utf-8"))
        records.write(RESULT_FILE, None)
    settings.change(run, longer, done)
    return longer


def evaluate_run(run: Path, names: list[str] | None = None, which: str | None = None) -> dict[str, dict[str, float]]:
    """Scores of the run's model by evaluation name; by default those that a run makes at its end."""
    return evaluate_with_confusions(run, names, which)[0]


def evaluate_with_confusions(
    run: Path, names: list[str] | None = None, which: str | None = None
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, Any]]]:
    """What :func:`evaluate_run` returns, and the confusion matrix of each evaluation that has one: ``classes``, and
    ``counts``, a row for each true class with a column for each predicted one."""
    experiment = load_experiment(run)
    if edited := RecordsFile(run).edited():
        print(f"{edited}; the scores are those of the edited settings", file=sys.stderr)
    _set_threads(experiment)
    task = build_task(experiment)
    model: Any = load_model(run, which or SCORED_WEIGHTS)
    if experiment.train.window is not None:
        model = Scored(model, None, experiment.train.window)
    batch = experiment.train.eval_batch
    sums = {name: evaluation_sums(task, name, model, batch) for name in names or task.final}
    return {name: task.scores(name, found) for name, found in sums.items()}, _confusions(task, sums)


def _confusions(task: Task, sums: dict[str, dict[str, float]]) -> dict[str, dict[str, Any]]:
    found = {name: confusion_matrix(of) for name, of in sums.items()}
    return {
        name: {"classes": list(task.dataset.class_names or map(str, range(len(counts)))), "counts": counts.tolist()}
        for name, counts in found.items()
        if counts is not None
    }


def load_model(run: str | Path, which: str = "best") -> PreTrainedModel:
    """The model of the run in the folder ``run``, in eval mode.

    which: ``best`` by the evaluations during training, or ``last``.
    """
    from transformers import AutoConfig

    import cosformer.hf as hf
    from cosformer.hf.convert import class_of

    run = Path(run)
    load_experiment(run)
    if which == "best":
        place = run / "best"
        checkpoints.refuse_damaged(place)
    elif which == "last":
        place = _newest(run)
    else:
        raise ValueError(f"which={which!r}; known: best, last")
    if place is None or not (place / "config.json").is_file():
        raise FileNotFoundError(f"the run {run} has no {which} weights; train it, or `cosformer resume {run}`")
    disable_progress_bar()  # a line of its own for every model that is loaded says nothing
    other = "--weights last" if which == "best" else "--weights best"
    try:
        config = AutoConfig.from_pretrained(place)
        kind = (config.architectures or [""])[0]
        if kind not in hf.__all__ and config.model_type == "cosformer":
            raise ValueError(f"its config.json names the architecture {kind!r}, which is not a cosformer class")
        # a run may have started from an encoder of transformers, and keeps its class
        made = getattr(hf, kind) if kind in hf.__all__ else class_of(config)
        return made.from_pretrained(place, dtype=torch.float32).eval()
    except Exception as error:  # whatever transformers makes of a file that was changed
        said = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{place} cannot be loaded ({said}); use {other}, or train the run again") from error


def _newest(run: Path) -> Path | None:
    """The newest checkpoint that can be used; why those after it cannot is printed."""
    checkpoint, problems = checkpoints.newest(run / "checkpoints")
    for problem in problems:
        print(problem, file=sys.stderr)
    return checkpoint


def _train_and_score(
    experiment: Experiment, task: Task, model: PreTrainedModel, run: Path, checkpoint: Path | None, quiet: bool
) -> dict[str, Any]:
    disable_progress_bar()  # transformers would draw one over ours for every file it writes
    if experiment.train.tracker in ("wandb", "trackio"):
        require("trackers", experiment.train.tracker)
    done = 0 if checkpoint is None else checkpoints.step_of(checkpoint)
    bar = None if quiet else Progress(f"{experiment.recipe} {experiment.model.attention}", task.metric)
    stop = StopOnSignal()
    callbacks: list[TrainerCallback] = [stop] if bar is None else [stop, bar]
    if experiment.train.tracker == "tensorboard" and _first_process():
        callbacks.append(_tensorboard(run, done))
    set_seed(experiment.train.seed)
    engine = Engine(experiment, task, model, run, callbacks=callbacks)
    record = _Record(engine, task)
    if checkpoint is not None:
        engine.load_counters(checkpoint)
    engine.metrics.cut(done)
    record.write("running")
    try:
        with stop:
            _run_updates(engine, checkpoint)
        if engine.state.global_step < experiment.train.steps and not engine.stopped_early:
            return record.write("stopped", f"{stop.received} at update {engine.state.global_step}")
        return _finish(engine, task, record)
    except (Exception, KeyboardInterrupt) as error:
        with contextlib.suppress(OSError):  # a full disk: the run is then taken for a killed one
            record.write("failed", str(error) or type(error).__name__)
        raise
    finally:
        if bar is not None:
            bar.close()


def _run_updates(engine: Engine, checkpoint: Path | None) -> None:
    if checkpoint is None:
        engine.train()
        return
    if engine.stopped_early:
        engine.load_stopped(checkpoint)
        return
    starts = StartsAt(checkpoint)
    engine.add_callback(starts)
    try:
        engine.train(resume_from_checkpoint=str(checkpoint))
    except Exception as error:
        if starts.loaded or isinstance(error, TrainingFailed):
            raise
        raise unreadable(checkpoint, error) from error


def _finish(engine: Engine, task: Task, record: "_Record") -> dict[str, Any]:
    """Score the last weights and write the result: the best of many noisy evaluations would flatter the noisier run."""
    sums = {name: engine.sums(name) for name in task.final}
    scores = {name: task.scores(name, found) for name, found in sums.items()}
    confusions = _confusions(task, sums)
    baselines = {name: task.baseline(name) for name in task.final}
    readers = {name: found for name in task.final if (found := task.text_baseline(name)) is not None}
    experiment = engine.experiment
    result = {
        "recipe": experiment.recipe,
        "task": experiment.task,
        "attention": experiment.model.attention,
        "seed": experiment.train.seed,
        "score": task.metric,
        "weights": SCORED_WEIGHTS,
        "scores": scores,
        "baseline": {name: asdict(baseline) for name, baseline in baselines.items()},
        "learned": {name: _beats(task, scores[name], baseline) for name, baseline in baselines.items()},
        **({"text_baseline": {name: asdict(found) for name, found in readers.items()}} if readers else {}),
        **({"confusion": confusions} if confusions else {}),
        "steps": engine.state.global_step,
        **({"stopped_early": True} if engine.stopped_early else {}),
        "tokens": engine.tokens,
        **record.facts(),
    }
    if engine.is_world_process_zero():
        engine.records.write(RESULT_FILE, json.dumps(result, indent=1) + "\n")
        best = engine.metrics.best(task.metric, task.selection, task.higher_is_better)
        engine.write_card(engine.run / "best", best, result)
    record.write("done")
    return result


def _beats(task: Task, scores: dict[str, float], baseline: Baseline) -> bool:
    """Better than the baseline by three standard errors (both errors count)."""
    sign = 1 if task.higher_is_better else -1
    error = (scores["error"] ** 2 + baseline.error**2) ** 0.5
    return bool(sign * (scores[task.metric] - baseline.score) > LEARNED_ERRORS * error)


class _Record:
    """``run.json``: where the run stands, for `cosformer runs` and for people."""

    def __init__(self, engine: Engine, task: Task) -> None:
        self.engine, self.task = engine, task
        # those after ``cosformer``, where that is how we were started
        words = [shlex.quote(word) for word in sys.argv[1:]]
        # asked once: git and the system are slow to answer, and every status of a run needs the answer
        self.ran_on = {"machine": machine.describe(torch.get_num_threads()), **machine.provenance(words)}
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        path = engine.run / RUN_FILE
        problems: list[str] = []
        before = read_object(path, problems, required=False) or {}
        problems += [altered] if before and (altered := engine.records.disagreement(RUN_FILE)) else []
        if isinstance(before.get("started"), str) and not problems:
            self.started = before["started"]
        elif path.exists() and engine.is_world_process_zero():
            problem = problems[0] if problems else f"{path} does not say when the run began"
            print(f"{problem}; the run continues, with the current time recorded as its start", file=sys.stderr)

    def facts(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "parameters": sum(p.numel() for p in engine.model.parameters()),  # pyright: ignore[reportOptionalMemberAccess]
            "seconds": round(engine.elapsed(), 2),
            "cpu_seconds": round(engine.cpu_elapsed(), 2),
            "peak_memory_mb": machine.peak_memory_mb(),
            "processes": engine.args.world_size,
            **({"changes": engine.records.changes} if engine.records.changes else {}),
            **self.ran_on,
        }

    def write(self, status: str, reason: str | None = None) -> dict[str, Any]:
        engine, task = self.engine, self.task
        values = {
            "status": status,
            "reason": reason,
            "started": self.started,
            **machine.process(),
            "steps_done": engine.state.global_step,
            "best": engine.metrics.best(task.metric, task.selection, task.higher_is_better),
            "score_name": task.metric,
            "higher_is_better": task.higher_is_better,
            **self.facts(),
        }
        if engine.is_world_process_zero():
            engine.records.write(RUN_FILE, json.dumps(values, indent=1) + "\n")
        return values


def _tensorboard(run: Path, step: int) -> TrainerCallback:
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    require("train", "tensorboard")
    return TensorBoardCallback(SummaryWriter(str(run / "tensorboard"), purge_step=step or None))


def _set_threads(experiment: Experiment) -> None:
    if experiment.train.threads is not None:
        torch.set_num_threads(experiment.train.threads)


def _first_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0
