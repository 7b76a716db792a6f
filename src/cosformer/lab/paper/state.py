"""Where a cell stands on the disk."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cosformer.experiment import EXPERIMENT_FILE, RESULT_FILE, Experiment, load_experiment
from cosformer.lab.paper.cells import Cell
from cosformer.lab.records import read_run

MISSING, HALF, DONE, OTHER, BROKEN = "missing", "half", "done", "other", "broken"

# what does not change the numbers: how a run was watched
_FREE = {"note", "train.threads", "train.tracker", "train.log_every", "train.keep", "train.diagnostics"}


def state(cell: Cell, runs: Path) -> tuple[str, str]:
    """One of the words above, and for the last two what is the matter."""
    folder = place(cell, runs)
    if not (folder / EXPERIMENT_FILE).exists():
        return MISSING, ""
    ended = (folder / RESULT_FILE).exists()  # looked for before it is read: a run may end in between
    run, problems = read_run(folder)
    if run is None or run.experiment is None:
        return BROKEN, f"{problems[0]}; remove {folder} to run it again"
    found = differences(run.experiment, cell, runs)
    if found:
        return OTHER, f"{folder} holds another experiment ({'; '.join(found)}); move it away or give other --runs"
    if run.finished or run.diverged:
        return DONE, ""
    if not ended:
        return HALF, ""
    damaged = next(problem for problem in problems if RESULT_FILE in problem)
    return BROKEN, f"{damaged}; remove it to finish the run again"


def place(cell: Cell, runs: Path) -> Path:
    """The folder of the cell's run: by its name, or another in ``runs`` that holds the same experiment."""
    folder = runs / cell.name
    if folder.exists():
        return folder
    for path in sorted(runs.glob(f"{cell.recipe}-*/{EXPERIMENT_FILE}")):
        try:
            if not differences(load_experiment(path.parent), cell, runs):
                return path.parent
        except ValueError:
            continue  # broken, so nobody's run
    return folder


def unreadable(cells: Iterable[Cell], runs: Path) -> list[str]:
    """A sentence for each folder that bears the name of one of the recipes and does not say which run it holds."""
    problems = []
    for recipe in dict.fromkeys(cell.recipe for cell in cells):
        for path in sorted(runs.glob(f"{recipe}-*/{EXPERIMENT_FILE}")):
            run, why = read_run(path.parent)
            problems += [] if run else why[:1]
    return problems


def differences(found: Experiment, cell: Cell, runs: Path) -> list[str]:
    """The fields in which an experiment is not the cell's, with both values; those that do not change the numbers are left out."""
    a, b = (_flat(dataclasses.asdict(experiment)) for experiment in (found, cell.experiment()))
    if cell.before is not None:
        # a start counts by what it is, not by where it lies: runs may be moved
        a["start"] = _is_run_of(cell.before, runs / Path(a["start"] or "").name, runs) or a["start"]
        b["start"] = True
    names = [name for name in sorted({*a, *b}) if name not in _FREE and a.get(name) != b.get(name)]
    return [f"{name} {a.get(name)!r}, not {b.get(name)!r}" for name in names]


def _is_run_of(cell: Cell, folder: Path, runs: Path) -> bool:
    try:
        return not differences(load_experiment(folder), cell, runs)
    except (FileNotFoundError, ValueError):
        return False


def _flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return flat
