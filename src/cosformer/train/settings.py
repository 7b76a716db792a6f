"""A run's settings: kept as they were when it began, changed by us alone, or by its user where they say so."""

import json
import sys
from pathlib import Path
from typing import Any

from cosformer.experiment import EXPERIMENT_FILE, METRICS_FILE, RESULT_FILE, Experiment, from_json, load_experiment
from cosformer.json_files import read_object
from cosformer.output_file import write_output
from cosformer.records_file import RecordsFile, differences
from cosformer.train import checkpoints

# the checkpoint goes on with these changed; with others, as another model or other data, it would be another run
CHANGEABLE = {
    *("lr", "beta1", "beta2", "eps", "momentum", "weight_decay", "schedule", "warmup", "cycle", "min_lr", "clip"),
    *("eval_batch", "eval_every", "save_every", "log_every", "keep", "tracker", "diagnostics", "threads", "workers"),
    "early_stopping",
}


def begin(run: Path, experiment: Experiment) -> None:
    """Write the settings of a new run."""
    write_output(run / EXPERIMENT_FILE, experiment.to_json())
    records = RecordsFile(run)
    records.settings = _in_file(run)
    records.save()


def change(run: Path, experiment: Experiment, update: int) -> None:
    """Give the run other settings from ``update`` on, and record what they were."""
    records = RecordsFile(run)
    new = json.loads(experiment.to_json())
    if records.settings is not None:
        old = json.loads(from_json(json.dumps(records.settings)).to_json())  # under today's names
        found = differences(old, new)
        records.changes.append({"update": update, "settings": {name: list(both) for name, both in found.items()}})
    records.settings = new
    records.save()
    write_output(run / EXPERIMENT_FILE, experiment.to_json())


def check(run: Path, *, apply_changes: bool) -> None:
    """Before a resume: refuse edited settings unless they are to be applied; report altered records."""
    records = RecordsFile(run)
    experiment = load_experiment(run)
    if records.problem:
        _note(records, f"{records.problem}; they are taken as they are now")
    if edited := records.edited():
        _apply(run, records, experiment, edited, apply_changes)
        records = RecordsFile(run)
    elif apply_changes:
        raise ValueError(f"no setting of {run} was edited since it began; leave out --apply-changes")
    if altered := records.disagreement(METRICS_FILE):
        _note(records, f"{altered}; its lines are kept as they are now")
    if not (run / RESULT_FILE).exists():  # whoever removed it wants it made again
        records.files.pop(RESULT_FILE, None)
    records.settings = _in_file(run)
    records.save()


def _apply(run: Path, records: RecordsFile, experiment: Experiment, edited: str, apply_changes: bool) -> None:
    last = checkpoints.newest(run / "checkpoints")[0]
    found = differences(records.settings or {}, _in_file(run))
    fixed = [name for name in found if name.removeprefix("train.") not in CHANGEABLE] if last else []
    if "train.steps" in fixed:
        raise ValueError(f"{edited}. Put it back, and train longer with `cosformer resume {run} --steps N`")
    if fixed:
        raise ValueError(
            f"{edited}. A run that has begun cannot change {', '.join(fixed)}: put it back, or start a new run"
        )
    if not apply_changes:
        raise ValueError(
            f"{edited}. Put it back, or continue with it from the last checkpoint: `cosformer resume {run} "
            "--apply-changes`"
        )
    step = 0 if last is None else checkpoints.step_of(last)
    print(f"{edited}: applied from update {step:,} on", file=sys.stderr)
    change(run, experiment, step)


def _note(records: RecordsFile, text: str) -> None:
    print(text, file=sys.stderr)
    records.notes.append(text)


def _in_file(run: Path) -> dict[str, Any]:
    """As experiment.json has them: one of an earlier version has other names."""
    return read_object(run / EXPERIMENT_FILE, [], required=True) or {}
