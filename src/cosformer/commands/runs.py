"""``cosformer runs``: list the runs of a folder with changed settings, status, score and time; compare two."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cosformer.commands.train import RUNS
from cosformer.recipes import RECIPES
from cosformer.report.overview import (
    differences,
    last_step,
    marked,
    metric_of,
    saved_step,
    score_of,
    settings,
    shown,
    status,
)
from cosformer.runs import Run, find_runs, read_run, read_runs
from cosformer.suggest import check_model_path, unknown
from cosformer.terminal import number, table

COLUMNS = ("run", "recipe", "attention", "seed", "steps", "status", "score", "best", "time", "changed")
# what --sort and --where know, besides the settings by their names on the command line
_FACTS = ("run", "recipe", "attention", "seed", "steps", "steps_done", "status", "best", "score", "seconds")
# in columns of their own, or no change
_NOT_CHANGES = ("recipe", "note", "model.attention", "train.seed", "train.threads")
_SHOWN = 4  # changes that the table names


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n  cosformer runs --sort score\n  cosformer runs --where status=killed --where train.steps=500"
        "\n  cosformer runs diff runs/a runs/b     how settings and scores differ"
    )
    add = parser.add_argument
    add("folder", nargs="*", metavar="FOLDER", help=f"where to look (default: {RUNS}); or: diff RUN RUN")
    add("--sort", metavar="NAME", help=f"by {', '.join(_FACTS)} or a setting, as train.lr")
    add("--reverse", action="store_true", help="sort from the other end")
    add("--where", action="append", default=[], metavar="NAME=VALUE", help="only these; again: both must hold")
    add("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    if args.folder[:1] == ["diff"]:
        if len(args.folder) != 3:
            raise ValueError("`cosformer runs diff` compares two runs: give two folders")
        return _diff(*map(Path, args.folder[1:]))
    folders = [Path(name) for name in args.folder] or [RUNS]
    for folder in folders:
        if args.folder and not folder.exists():
            raise FileNotFoundError(f"there is no folder {folder}")
    found, problems = read_runs([path for folder in folders for path in find_runs(folder)])
    for problem in problems:
        print(f"cosformer runs: {problem}", file=sys.stderr)
    chosen = _sorted([each for each in found if _matches(each, args.where)], args.sort, args.reverse)
    if args.json:
        for each in chosen:
            print(json.dumps(facts(each)))
    elif chosen:
        print(table(COLUMNS, [_row(each, folders) for each in chosen]))
    elif found:
        print(f"none of the {len(found)} runs is so: {' '.join(args.where)}", file=sys.stderr)
    else:
        print(f"no runs in {', '.join(map(str, folders))}; `cosformer train` makes some", file=sys.stderr)
    return 0


def facts(run: Run) -> dict[str, Any]:
    """What the table shows, as a value; None where the run has not come to it."""
    best, metric = run.info.get("best") or {}, metric_of(run)
    assert run.experiment is not None, "the run is a folder's"
    return {
        "run": str(run.path),
        "recipe": run.recipe,
        "attention": run.attention,
        "seed": run.seed,
        "steps_done": last_step(run),
        "steps_saved": saved_step(run),
        "steps": run.experiment.train.steps,
        "status": status(run),
        "reason": run.reason,
        "altered": list(run.altered),
        "score_name": run.info.get("score_name"),
        "best": best.get("score"),
        "best_step": best.get("step"),
        "score_unit": metric.unit if metric else None,
        "score": score_of(run, metric) if metric else None,
        "seconds": run.info.get("seconds"),
        "changed": changes(run),
    }


def changes(run: Run) -> dict[str, Any]:
    """The settings that are not the recipe's; none where the recipe is unknown here."""
    if run.experiment is None or run.recipe not in RECIPES:
        return {}
    found = differences(settings(run.experiment), settings(RECIPES[run.recipe]()))
    return {name: ours for name, (ours, _) in found.items() if name not in _NOT_CHANGES}


def _named(run: Run, name: str) -> Any:
    """A fact or a setting of the run."""
    values = facts(run) | {"run": run.name}
    own = settings(run.experiment) if run.experiment else {}
    key = name.replace("-", "_")
    if key in values:
        return values[key]
    if key not in own and "options." not in key and "fields." not in key:
        raise unknown("column or setting", name, [*_FACTS, *own])
    return own.get(key)


def _matches(run: Run, conditions: Sequence[str]) -> bool:
    for condition in conditions:
        name, equals, value = condition.partition("=")
        if not equals:
            raise ValueError(f"--where {condition}: give NAME=VALUE, as status=finished or train.steps=500")
        found = _named(run, name)
        if value not in (str(found), shown(found), json.dumps(found)):
            return False
    return True


def _sorted(runs: list[Run], name: str | None, from_the_end: bool) -> list[Run]:
    """Those without a value last; the best score first."""
    if name is None:
        return runs
    values = {id(run): _named(run, name) for run in runs}
    with_value = [run for run in runs if values[id(run)] is not None]
    metric = next(filter(None, map(metric_of, with_value)), None) if name == "score" else None
    reverse = bool(metric and metric.higher_is_better) != from_the_end
    numbers = all(isinstance(values[id(run)], int | float) for run in with_value)
    with_value.sort(key=lambda run: values[id(run)] if numbers else str(values[id(run)]), reverse=reverse)
    return [*with_value, *(run for run in runs if values[id(run)] is None)]


def _row(run: Run, folders: Sequence[Path]) -> tuple[str, ...]:
    values = facts(run)
    name = str(run.path)
    if run.path and len(folders) == 1:
        name = str(run.path.relative_to(folders[0])) if run.path != folders[0] else run.name
    steps = f"{values['steps_done']}/{values['steps']}"
    if not run.finished and values["steps_saved"] is not None:
        steps += f" (saved {values['steps_saved']})"
    best = "-" if values["best"] is None else f"{values['score_name']} {number(values['best'])}"
    ending = marked(run) if not run.reason else f"{marked(run)} ({run.reason.splitlines()[0][:40]})"
    said = [f"{name} {shown(value)}" for name, value in values["changed"].items()]
    more = [f"{len(said) - _SHOWN} more"] if len(said) > _SHOWN else []  # --json has them all
    changed = ", ".join([*said[:_SHOWN], *more]) or "-"
    end = (ending, _score(run), best, _time(values["seconds"]), changed)
    return name, run.recipe, run.attention, str(run.seed), steps, *end


def _diff(a: Path, b: Path) -> int:
    """Settings that differ, then scores, side by side."""
    both = []
    for path in (a, b):
        check_model_path(str(path))
        run, problems = read_run(path)
        if run is None or run.experiment is None:
            raise ValueError(problems[0])
        both.append(run)
    first, second = both
    found = differences(settings(first.experiment), settings(second.experiment))
    rows: list[tuple[str, ...]] = [
        (name, shown(ours), shown(theirs)) for name, (ours, theirs) in found.items() if name != "note"
    ]
    rows += [("status", status(first), status(second)), ("score", _score(first), _score(second))]
    for split in dict.fromkeys([*first.scores, *second.scores]):
        for name in dict.fromkeys([*first.scores.get(split, {}), *second.scores.get(split, {})]):
            values = [run.scores.get(split, {}).get(name) for run in both]
            rows.append((f"{split}, {name}", *("-" if x is None else number(x) for x in values)))
    rows.append(("time", *(_time(run.info.get("seconds")) for run in both)))
    print(table(("", str(a), str(b)), rows))
    return 0


def _score(run: Run) -> str:
    metric = metric_of(run)
    score = score_of(run, metric) if metric else None
    return "-" if metric is None or score is None else f"{metric.text(score)} {metric.unit}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
