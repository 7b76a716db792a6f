"""The sections about trained models: how the loss fell, every run, and our scores beside the paper's."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace

from cosformer.report import overview
from cosformer.report import paper_numbers as paper
from cosformer.report.html import Cell, Html, code, details, gallery, join, paragraph, sortable, table, tag
from cosformer.report.material import Material
from cosformer.report.paper_tables import UNITS, UNLEARNED, Column, average, entries, paper_table, sources, tasks
from cosformer.report.records import Run
from cosformer.report.result_figures import loss_curves

_AT_ONCE = 6  # setups whose curves are not folded away


def language_modelling(material: Material) -> Html:
    """A model of words beside the paper's; one of bytes on its own, as nothing in the paper is in bits per byte."""
    parts = []
    for recipe, of_recipe in overview.grouped(_sound(material, "lm"), "recipe").items():
        scores = [x.scores.get(split, {}) for x in of_recipe for split in ("valid", "test")]
        if any("bits_per_byte" in found and not overview.reads_words(found) for found in scores):
            measures = ["bits_per_byte"]
            if all(overview.is_sensible(found["word_perplexity"]) for found in scores if "word_perplexity" in found):
                measures.append("word_perplexity")
            columns = [
                Column(f"{split}, {UNITS[x]}", (recipe,), x, split) for x in measures for split in ("valid", "test")
            ]
            parts.append(_table(of_recipe, recipe, columns, {}))
        else:
            columns = [Column(split, (recipe,), "word_perplexity", split) for split in ("valid", "test")]
            parts.append(_table(of_recipe, recipe, columns, paper.TABLE2))
    theirs = " The paper's: perplexity of a word of WikiText-103, full size." if " / " in "".join(parts) else ""
    return _section(f"Held-out text: lower is better.{theirs}", parts)


def masked_language_modelling(material: Material) -> Html:
    lead = (
        "Loss on masked tokens in nats: lower is better. The paper's: validation loss of RoBERTa-base on WikiText-103, whose"
        " base it does not state."
    )
    theirs = {name: {"valid": row["loss"]} for name, row in paper.TABLE1.items()}
    parts = []
    for recipe, of_recipe in overview.grouped(_sound(material, "mlm"), "recipe").items():
        columns = [Column(split, (recipe,), "loss", split) for split in ("valid", "test")]
        parts.append(_table(of_recipe, recipe, columns, theirs))
    return _section(lead, parts)


def fine_tuning(material: Material) -> Html:
    lead = "Accuracy in percent after fine-tuning: higher is better. The paper's: full size."
    return _section(lead, _accuracies(_sound(material), "finetune", tuple(paper.FINETUNE), paper.TABLE3))


def long_range_arena(material: Material) -> Html:
    lead = "Accuracy in percent on tasks with long inputs: higher is better. The paper's: full size."
    return _section(lead, _accuracies(_sound(material), "lra", paper.LRA, paper.TABLE4))


def curves(material: Material) -> Html:
    """The loss on the way, of each setup: runs that differ in attention and seed alone."""
    parts = []
    for setup in overview.setups(material.runs):
        names = dict.fromkeys(x.attention for x in setup.runs)
        first = [x for x in paper.FIGURE4 if x in names]
        order = [*first, *(x for x in names if x not in first)]
        found = material.guarded(setup.label, lambda setup=setup, order=order: loss_curves(setup.runs, order))
        if found:
            parts.append((setup.label, found))
    at_once = [join([tag("h3", label), gallery(found)]) for label, found in parts[:_AT_ONCE]]
    folded = [details(label, gallery(found)) for label, found in parts[_AT_ONCE:]]
    return join([*at_once, *folded])


def _section(lead: str, parts: Sequence[Html]) -> Html:
    return join([paragraph(lead), *parts]) if parts else Html("")


def _sound(material: Material, task: str | None = None) -> list[Run]:
    """The runs with a result, those of one recipe that differ in more than attention and seed under names of their own."""
    return [
        replace(run, recipe=setup.label)
        for setup in overview.setups([run for run in material.runs if run.finished or run.diverged])
        for run in setup.runs
        if task in (None, run.task)
    ]


def _accuracies(runs: Sequence[Run], prefix: str, names: Sequence[str], theirs: paper.Table) -> list[Html]:
    """One table for each size of the recipes: attentions down, data sets across, and the average."""
    pattern = re.compile(rf"{prefix}-(?:{'|'.join(names)})((?:-|, ).*)?")
    sizes = dict.fromkeys(match[1] or "" for x in runs if (match := pattern.fullmatch(x.recipe)))
    parts = []
    for size in sizes:
        recipes = [f"{prefix}-{name}{size}" for name in names]
        of_size = [x for x in runs if x.recipe in recipes]
        columns = [*tasks(recipes), average("average", recipes, of_size)]
        parts.append(_table(of_size, f"{prefix}-…{size}", columns, theirs))
    return parts


def _table(runs: Sequence[Run], recipe: str, columns: Sequence[Column], theirs: paper.Table) -> Html:
    """What we ran first, then the paper's other rows; both in the paper's order as far as it has them."""
    used = {name for column in columns for name in column.recipes}
    ours = [x.attention for x in runs if x.recipe in used]
    order = list(dict.fromkeys([*theirs, *ours]))
    names = [*(name for name in order if name in ours), *(name for name in order if name not in ours)]
    cells = entries(columns, runs, names, theirs)
    title = f"Ours: recipe {recipe}, mean ± standard error over seeds."
    notes = [*sources(columns, runs), *([UNLEARNED] if any(entry.unlearned for entry in cells) else [])]
    listed = tag("ul", *(tag("li", note) for note in notes), class_="notes")
    return join([paper_table(title, cells, paper.NAMES).html, listed])


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
    names = overview.varying_settings(chosen)
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
