"""``cosformer runs``: the runs of a folder: status, best score, time."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cosformer.commands.train import RUNS
from cosformer.lab.records import Run, find_runs, read_runs
from cosformer.terminal import table

COLUMNS = ("run", "recipe", "attention", "seed", "steps", "status", "best", "time")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, nargs="?", default=RUNS, metavar="FOLDER", help="where to look (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    found, problems = read_runs(find_runs(args.folder))
    for problem in problems:
        print(f"cosformer runs: {problem}", file=sys.stderr)
    if args.json:
        for each in found:
            print(json.dumps(facts(each)))
    elif found:
        print(table(COLUMNS, [_row(each, args.folder) for each in found]))
    else:
        print(f"no runs in {args.folder}; `cosformer train` makes some", file=sys.stderr)
    return 0


def facts(run: Run) -> dict[str, Any]:
    """What the table shows, as a value; None where the run has not come to it."""
    best = run.info.get("best") or {}
    assert run.experiment is not None, "the run is a folder's"
    return {
        "run": str(run.path),
        "recipe": run.recipe,
        "attention": run.attention,
        "seed": run.seed,
        "steps_done": run.info.get("steps_done"),
        "steps": run.experiment.train.steps,
        "status": run.status,
        "reason": run.reason,
        "score_name": run.info.get("score_name"),
        "best": best.get("score"),
        "best_step": best.get("step"),
        "seconds": run.info.get("seconds"),
    }


def _row(run: Run, folder: Path) -> tuple[str, ...]:
    values = facts(run)
    name = str(run.path.relative_to(folder)) if run.path and run.path != folder else run.name
    done = "?" if values["steps_done"] is None else f"{values['steps_done']}/{values['steps']}"
    best = "-" if values["best"] is None else f"{values['score_name']} {values['best']:.4f}"
    status = (
        values["status"] if not values["reason"] else f"{values['status']} ({values['reason'].splitlines()[0][:40]})"
    )
    return name, run.recipe, run.attention, str(run.seed), done, status, best, _time(values["seconds"])


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
