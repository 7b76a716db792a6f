"""The sections about trained models: how the loss fell, and every run."""

import json
import math
from collections.abc import Sequence

from cosformer.report import overview
from cosformer.report.html import Cell, Html, code, details, gallery, join, paragraph, sortable, table, tag
from cosformer.report.material import Material
from cosformer.report.result_figures import loss_curves
from cosformer.runs import Run

UNLEARNED = "* No better than a model that ignores its input."
_AT_ONCE = 6  # setups whose curves are not folded away


def curves(material: Material) -> Html:
    """The loss on the way, of each setup: runs that differ in attention and seed alone."""
    parts = []
    for setup in overview.setups(material.runs):
        names = dict.fromkeys(x.attention for x in setup.runs)
        order = list(names)
        found = material.guarded(setup.label, lambda setup=setup, order=order: loss_curves(setup.runs, order))
        if found:
            parts.append((setup.label, found))
    at_once = [join([tag("h3", label), gallery(found)]) for label, found in parts[:_AT_ONCE]]
    folded = [details(label, gallery(found)) for label, found in parts[_AT_ONCE:]]
    return join([*at_once, *folded])


# --- every run: one table a recipe with the settings that differ, the broken ones apart, and each run in full


def runs(material: Material) -> Html:
    parts: list[Html] = []
    for recipe, of_recipe in overview.grouped((run for run in material.runs if not run.broken), "recipe").items():
        parts += [tag("h3", recipe), *material.guarded(recipe, lambda chosen=of_recipe: [_run_table(chosen)])]
    broken = [run for run in material.runs if run.broken]
    if broken:
        parts += [tag("h3", "Without a result"), _broken(broken)]
    if material.runs:
        each = material.guarded("the settings of a run", lambda: [_whole(run) for run in material.runs])
        parts.append(details("The settings and the command of each run", *each))
    return join(parts)


def _run_table(chosen: Sequence[Run]) -> Html:
    """The best first; a column for each setting in which these runs differ."""
    names = overview.told_apart_by(chosen)
    metric = next(filter(None, map(overview.metric_of, chosen)), None)
    unit = metric.unit if metric else "score"
    splits = {run.evaluation for run in chosen if run.scores}
    split = f", {splits.pop()}" if len(splits) == 1 else ""
    header = ["run", "attention", *map(overview.short, names), "seed", f"{unit}{split}", "status", "updates", "minutes"]
    rows = []
    for run in chosen:
        own = overview.settings(run.experiment) if run.experiment else {}
        score = overview.score_of(run, metric) if metric else None
        star = "" if run.learned.get(run.evaluation, True) else "*"
        cells: list[object] = [run.name, run.attention, *(_setting(own.get(name)) for name in names), run.seed]
        cells.append(Cell("-" if score is None or metric is None else f"{metric.text(score)}{star}", score))
        minutes = "" if run.seconds is None else f"{run.seconds / 60:.1f}"
        rows.append((score, [*cells, overview.status(run), _updates(run), Cell(minutes, run.seconds)]))
    sign = -1 if metric and metric.higher_is_better else 1
    rows.sort(key=lambda row: math.inf if row[0] is None else sign * row[0])
    starred = any(not run.learned.get(run.evaluation, True) for run in chosen)
    note = paragraph(UNLEARNED, class_="source") if starred else Html("")
    return join([sortable(header, [cells for _, cells in rows]), note])


def _setting(value: object) -> Cell:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Cell(overview.shown(value), number)


def _updates(run: Run) -> Cell:
    done = overview.last_step(run)
    of = f" of {run.experiment.train.steps:,}" if run.experiment and not run.finished else ""
    return Cell(f"{done:,}{of}" if done or of else "", done)


def _broken(chosen: Sequence[Run]) -> Html:
    rows = []
    for run in chosen:
        saved = overview.saved_step(run)
        reason = " ".join((run.reason or "it does not say why").split())
        on_disk = "no checkpoint" if saved is None else f"checkpoint {saved:,}"
        which = [run.name, run.recipe, run.attention, run.seed, overview.status(run)]
        rows.append([*which, f"{_updates(run)}, {on_disk}", reason if len(reason) <= 90 else f"{reason[:89]}…"])
    return table(["run", "recipe", "attention", "seed", "status", "updates", "reason"], rows)


def _whole(run: Run) -> Html:
    """One fold: the command, where it lies, the scores and every setting."""
    own = overview.settings(run.experiment) if run.experiment else {}
    parts = [paragraph(code(run.command), class_="source")] if run.command else []
    where = [str(run.path or ""), f"commit {run.commit}" if run.commit else "", run.date or ""]
    parts += [paragraph(", ".join(filter(None, where)), class_="source")] if any(where) else []
    if run.reason:
        parts.append(paragraph(f"{overview.status(run)}: {run.reason}", class_="source"))
    scores = [(f"{split}, {name}", f"{x:.5g}") for split, found in run.scores.items() for name, x in found.items()]
    parts += [table(["score", ""], scores)] if scores else []
    rows = [(name, json.dumps(own[name], ensure_ascii=False)) for name in own if name not in ("note", "recipe")]
    parts += [table(["setting", ""], rows)] if rows else []
    parts += [paragraph(run.note, class_="source")] if run.note else []
    return details(f"{run.name}: {run.recipe}, {run.attention}, seed {run.seed}", *parts)
