"""The section about the runs: one table a recipe with the settings that differ, the broken ones apart, and each run in full."""

import json
from collections.abc import Sequence

from cosformer.lab.overview import (
    last_step,
    metric_of,
    saved_step,
    score_of,
    settings,
    short,
    shown,
    status,
    told_apart_by,
)
from cosformer.lab.records import Run
from cosformer.lab.render.html import Cell, Html, code, details, join, paragraph, sortable, table, tag
from cosformer.lab.render.material import Material


def runs(material: Material) -> Html:
    parts: list[Html] = []
    sound = [run for run in material.runs if not run.broken]
    for recipe in dict.fromkeys(run.recipe for run in sound):
        of_recipe = [run for run in sound if run.recipe == recipe]
        parts += [tag("h3", recipe), *material.guarded(recipe, lambda chosen=of_recipe: [_table(chosen)])]
    broken = [run for run in material.runs if run.broken]
    if broken:
        parts += [tag("h3", "Without a result"), _broken(broken)]
    if material.runs:
        each = material.guarded("the settings of a run", lambda: [_whole(run) for run in material.runs])
        parts.append(details("The settings and the command of each run", *each))
    return join(parts)


def _table(chosen: Sequence[Run]) -> Html:
    """The best first; a column for each setting in which these runs differ."""
    names = told_apart_by(chosen)
    metric = next(filter(None, map(metric_of, chosen)), None)
    unit = metric.unit if metric else "score"
    splits = {run.evaluation for run in chosen if run.scores}
    header = [
        "run",
        "attention",
        *map(short, names),
        "seed",
        f"{unit}{f', {splits.pop()}' if len(splits) == 1 else ''}",
    ]
    header += ["status", "updates", "minutes"]
    rows = []
    for run in chosen:
        own = settings(run.experiment) if run.experiment else {}
        score = score_of(run, metric) if metric else None
        star = "" if run.learned.get(run.evaluation, True) else "*"
        cells: list[object] = [run.name, run.attention, *(_setting(own.get(name)) for name in names), run.seed]
        cells.append(Cell("-" if score is None or metric is None else f"{metric.text(score)}{star}", score))
        cells += [
            status(run),
            _updates(run),
            Cell("" if run.seconds is None else f"{run.seconds / 60:.1f}", run.seconds),
        ]
        rows.append((score, cells))
    worst = float("inf")
    sign = -1 if metric and metric.higher_is_better else 1
    rows.sort(key=lambda row: worst if row[0] is None else sign * row[0])
    starred = any(not run.learned.get(run.evaluation, True) for run in chosen)
    note = paragraph("* No better than a model that ignores its input.", class_="source") if starred else Html("")
    return join([sortable(header, [cells for _, cells in rows]), note])


def _setting(value: object) -> Cell:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Cell(shown(value), number)


def _updates(run: Run) -> Cell:
    done = last_step(run)
    of = f" of {run.experiment.train.steps:,}" if run.experiment and not run.finished else ""
    return Cell(f"{done:,}{of}" if done or of else "", done)


def _broken(chosen: Sequence[Run]) -> Html:
    rows = []
    for run in chosen:
        saved = saved_step(run)
        reason = " ".join((run.reason or "it does not say why").split())
        on_disk = "no checkpoint" if saved is None else f"checkpoint {saved:,}"
        rows.append(
            [run.name, run.recipe, run.attention, run.seed, status(run), f"{_updates(run)}, {on_disk}", _cut(reason)]
        )
    return table(["run", "recipe", "attention", "seed", "status", "updates", "reason"], rows)


def _cut(reason: str, letters: int = 90) -> str:
    return reason if len(reason) <= letters else f"{reason[: letters - 1]}…"


def _whole(run: Run) -> Html:
    """One fold: the command, where it lies, the scores and every setting."""
    own = settings(run.experiment) if run.experiment else {}
    parts = [paragraph(code(run.command), class_="source")] if run.command else []
    where = [str(run.path)] if run.path else []
    where += [f"commit {run.commit}"] if run.commit else []
    where += [run.date] if run.date else []
    parts += [paragraph(", ".join(where), class_="source")] if where else []
    if run.reason:
        parts.append(paragraph(f"{status(run)}: {run.reason}", class_="source"))
    scores = [(f"{split}, {name}", f"{x:.5g}") for split, found in run.scores.items() for name, x in found.items()]
    parts += [table(["score", ""], scores)] if scores else []
    rows = [
        (name, json.dumps(value, ensure_ascii=False)) for name, value in own.items() if name not in ("note", "recipe")
    ]
    parts += [table(["setting", ""], rows)] if rows else []
    parts += [paragraph(run.note, class_="source")] if run.note else []
    return details(f"{run.name}: {run.recipe}, {run.attention}, seed {run.seed}", *parts)
