"""A finished run in one line of JSON, small enough to commit; the ledger and the tables are made from such lines."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cosformer.lab.paper.cells import Cell
from cosformer.lab.paper.state import DONE, HALF, diverged, place, state, unreadable
from cosformer.lab.records import Curve, Run, read_run

CURVE_POINTS = 40
_RESULT = (
    "score",
    "scores",
    "baseline",
    "learned",
    "steps",
    "tokens",
    "parameters",
    "seconds",
    "cpu_seconds",
    "machine",
    "date",
    "commit",
)
_NEEDED = (
    "recipe",
    "attention",
    "seed",
    "status",
    "scores",
    "baseline",
    "learned",
    "cpu_seconds",
    "machine",
    "command",
)


def summary(run: Run, cell: Cell) -> dict[str, Any] | None:
    """What is kept of the ``run`` of ``cell``; None while it is not finished."""
    source = run.result or (run.info if diverged(run) else None)
    if source is None:
        return None
    line: dict[str, Any] = {
        "recipe": cell.recipe,
        "task": run.task,
        "attention": cell.attention,
        "seed": cell.seed,
        "status": "done" if run.result else "diverged",
        "reason": None if run.result else run.info.get("reason"),
    }
    line |= {"scores": {}, "baseline": {}, "learned": {}} | {key: source[key] for key in _RESULT if key in source}
    # as anyone would type it: the run may have been resumed, and lies somewhere on one machine
    runs = Path("runs")
    start = None if cell.before is None else runs / cell.before.name
    line["command"] = " ".join(["cosformer", *cell.words(runs / cell.name, start, run.experiment.train.threads)])
    if cell.rate is not None:
        line["rate"] = cell.rate
    line["lr"] = run.experiment.train.lr
    curve = run.train_curve("loss")
    if curve:  # each point is the mean of as many updates, so the mean of the points is the area under the curve
        line["mean_train_loss"] = sum(value for _, value in curve) / len(curve)
    line["train_loss"] = thinned(curve)
    line["valid_loss"] = thinned(run.eval_curve(_selection(run), "loss"))
    line["note"] = run.experiment.note
    return _rounded(line)


def collect(cells: Iterable[Cell], runs: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines of the cells that are done, sorted, and what could not be read or is another experiment."""
    cells = list(dict.fromkeys(cells))
    lines, problems = [], unreadable(cells, runs)
    for cell in cells:
        kind, why = state(cell, runs)
        problems += [why] if why and not any(why.startswith(problem) for problem in problems) else []
        problems += [f"{cell.name} is not done"] if kind == HALF else []
        run, found = read_run(place(cell, runs)) if kind == DONE else (None, [])
        problems += found
        line = summary(run, cell) if run is not None else None
        missing = [key for key in _NEEDED if line is not None and key not in line]
        if missing:
            problems.append(f"the result of {runs / cell.name} lacks {', '.join(missing)}")
        elif line is not None:
            lines.append(line)
    return sorted(lines, key=cell_key), problems


def write_lines(lines: Iterable[dict[str, Any]], path: Path) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def append_line(line: dict[str, Any], path: Path) -> None:
    """Add the line in one write, so that a reader sees all of it or nothing."""
    with path.open("ab", buffering=0) as file:
        file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines of a file that ``write_lines`` wrote, and a sentence for each that cannot be read; none without the file."""
    if not path.exists():
        return [], [f"{path} is missing"]
    lines, problems = [], []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        missing = [key for key in _NEEDED if key not in line] if isinstance(line, dict) else ["a JSON object"]
        if missing:
            problems.append(f"{path} line {number} cannot be used: it lacks {', '.join(missing)}")
        else:
            lines.append(line)
    return sorted(lines, key=cell_key), problems


def one_line(line: dict[str, Any]) -> str:
    """A finished run for people: score, baseline, time."""
    name = f"{line['recipe']} {line['attention']} seed {line['seed']}"
    if line["status"] == "diverged":
        return f"{name}: {line['reason']}"
    which = evaluation(line)
    score, base = line["scores"][which][line["score"]], line["baseline"][which]
    verdict = "learned" if line["learned"][which] else "at the baseline"
    return f"{name}: {line['score']} {score:.4g} ({base['name']} {base['score']:.4g}, {verdict}), {line['cpu_seconds']:.0f} s"


def evaluation(line: dict[str, Any]) -> str:
    """The evaluation that counts: the test split where the run scored it, otherwise the validation split."""
    return "test" if "test" in line["scores"] else "valid"


def thinned(curve: Curve, points: int = CURVE_POINTS) -> Curve:
    """At most ``points`` points of the curve, evenly spread, its first and last among them."""
    if len(curve) <= points:
        return curve
    return [curve[round(i * (len(curve) - 1) / (points - 1))] for i in range(points)]


def _selection(run: Run) -> str:
    """The evaluation made during training."""
    names: Sequence[str] = [line["name"] for line in run.metrics if line["kind"] == "eval"]
    return names[0] if names else "valid"


def cell_key(line: dict[str, Any]) -> tuple[str, str, int, float]:
    """What tells runs apart: recipe, attention, seed and, in the search of rates, the rate (0 elsewhere)."""
    return line["recipe"], line["attention"], line["seed"], line.get("rate") or 0.0


def merged(*parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of all parts, sorted; a run that is in several counts once, with its first line."""
    found: dict[tuple[str, str, int, float], dict[str, Any]] = {}
    for line in (line for part in parts for line in part):
        found.setdefault(cell_key(line), line)
    return sorted(found.values(), key=cell_key)


def _rounded(value: Any) -> Any:
    """Floats to six digits: more says nothing and makes the file large."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
