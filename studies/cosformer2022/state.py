"""Where a cell stands on the disk; and its run, once it is finished, as it is kept: small enough to commit, with the
command as anyone would type it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cosformer.experiment import EXPERIMENT_FILE, RESULT_FILE, Experiment, load_experiment
from cosformer.report import overview
from cosformer.report.overview import settings
from cosformer.runs import Run, read_run
from studies.cosformer2022.cells import Cell

MISSING, HALF, DONE, OTHER, BROKEN = "missing", "half", "done", "other", "broken"

_NEEDED = ("cpu_seconds", "machine")  # of a result, for the pages
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
    """The fields in which an experiment differs from the cell's, with both values, if they affect results."""
    a, b = settings(found), settings(cell.experiment())
    if cell.before is not None:
        # a start counts by what it is, not by where it lies: runs may be moved
        a["start"] = _is_run_of(cell.before, runs / Path(a["start"] or "").name, runs) or a["start"]
        b["start"] = True
    different = sorted(overview.differences(a, b).items())
    return [f"{name} {ours!r}, not {wanted!r}" for name, (ours, wanted) in different if name not in _FREE]


def _is_run_of(cell: Cell, folder: Path, runs: Path) -> bool:
    try:
        return not differences(load_experiment(folder), cell, runs)
    except (FileNotFoundError, ValueError):
        return False


def collect(cells: Iterable[Cell], runs: Path) -> tuple[list[Run], list[str]]:
    """The runs of the cells that are done, sorted, and what could not be read or is another experiment."""
    cells = list(dict.fromkeys(cells))
    done, problems = [], unreadable(cells, runs)
    for cell in cells:
        kind, why = state(cell, runs)
        problems += [why] if why and not any(why.startswith(problem) for problem in problems) else []
        problems += [f"{cell.name} is not done"] if kind == HALF else []
        run, found = read_run(place(cell, runs)) if kind == DONE else (None, [])
        problems += found
        missing = [name for name in _NEEDED if run is not None and not getattr(run, name)]
        if missing:
            problems.append(f"the result of {runs / cell.name} lacks {', '.join(missing)}")
        elif run is not None:
            done.append(_of_cell(run, cell))
    return sorted(done, key=cell_key), problems


def cell_key(run: Run) -> tuple[str, str, int, float]:
    """What tells runs apart: recipe, attention, seed and, in the search of rates, the rate (0 elsewhere)."""
    return *run.key, run.extra.get("rate") or 0.0


def merged(*parts: Iterable[Run]) -> list[Run]:
    """The runs of all parts, sorted; one that is in several counts once, as it is in the first."""
    found: dict[tuple[str, str, int, float], Run] = {}
    for run in (run for part in parts for run in part):
        found.setdefault(cell_key(run), run)
    return [found[key] for key in sorted(found)]


def finished(cell: Cell, runs: Path) -> Path | None:
    """The folder of the cell's run, if it is done and has weights."""
    run, _ = read_run(place(cell, runs)) if state(cell, runs)[0] == DONE else (None, [])
    return None if run is None or run.diverged else run.path


def task_and_model(run: Path) -> tuple[Any, Any]:
    """Of a finished run, with its best weights."""
    import transformers

    from cosformer.tasks import build_task
    from cosformer.train import load_model

    transformers.logging.disable_progress_bar()  # for a moment's work
    return build_task(load_experiment(run)), load_model(run)


def one_line(run: Run) -> str:
    """A finished run for people: score, baseline, time."""
    name = f"{run.recipe} {run.attention} seed {run.seed}"
    if run.diverged:
        return f"{name}: {run.reason}"
    which = run.evaluation
    score, base = run.scores[which][run.score or "loss"], run.baseline[which]
    verdict = "learned" if run.learned[which] else "at the baseline"
    return f"{name}: {run.score} {score:.4g} ({base['name']} {base['score']:.4g}, {verdict}), {run.cpu_seconds:.0f} s"


def _of_cell(run: Run, cell: Cell) -> Run:
    """``run`` with the command that makes it anywhere: it may have been resumed, and lies somewhere on one machine."""
    runs = Path("runs")
    start = None if cell.before is None else runs / cell.before.name
    assert run.experiment is not None, "the run is a folder's"
    command = " ".join(["cosformer", *cell.words(runs / cell.name, start, run.experiment.train.threads)])
    extra = run.extra | ({} if cell.rate is None else {"rate": cell.rate}) | {"lr": run.experiment.train.lr}
    if run.train_loss:
        # each point is the mean of as many updates, so the mean of the points is the area under the curve
        extra["mean_train_loss"] = sum(value for _, value in run.train_loss) / len(run.train_loss)
    own = {"recipe": cell.recipe, "attention": cell.attention, "seed": cell.seed}
    return replace(run, **own, status="diverged" if run.diverged else run.status, command=command, extra=extra)
