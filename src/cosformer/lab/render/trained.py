"""The sections about trained models: our scores beside the paper's, and how the loss fell."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cosformer.lab import numbers as paper
from cosformer.lab.overview import is_sensible, reads_words, setups
from cosformer.lab.records import Run
from cosformer.lab.render.html import Html, details, gallery, join, paragraph, tag
from cosformer.lab.render.material import Material
from cosformer.lab.render.paper_tables import UNITS, UNLEARNED, Column, average, entries, paper_table, sources, tasks
from cosformer.lab.render.result_figures import PAPER, loss_curves

_AT_ONCE = 6  # setups whose curves are not folded away
_SETS = ("qqp", "sst2", "mnli", "imdb", "amazon")
_LRA = ("listops", "text", "retrieval", "image", "pathfinder")


def language_modelling(material: Material) -> Html:
    """A model of words beside the paper's; one of bytes on its own, as nothing in the paper is in bits per byte."""
    runs = _sound(material, "lm")
    parts = []
    for recipe in _recipes(runs):
        of_recipe = [x for x in runs if x.recipe == recipe]
        scores = [x.scores.get(split, {}) for x in of_recipe for split in ("valid", "test")]
        if any("bits_per_byte" in found and not reads_words(found) for found in scores):
            measures = ["bits_per_byte"]
            if all(is_sensible(found["word_perplexity"]) for found in scores if "word_perplexity" in found):
                measures.append("word_perplexity")
            columns = [
                Column(f"{split}, {UNITS[x]}", (recipe,), x, split) for x in measures for split in ("valid", "test")
            ]
            parts.append(_table(of_recipe, recipe, columns, {}))
        else:
            columns = [Column(split, (recipe,), "word_perplexity", split) for split in ("valid", "test")]
            parts.append(_table(of_recipe, recipe, columns, paper.TABLE2))
    theirs = " The paper's: perplexity of a word of WikiText-103, full size." if " / " in "".join(parts) else ""
    return join([paragraph(f"Held-out text: lower is better.{theirs}"), *parts]) if parts else Html("")


def masked_language_modelling(material: Material) -> Html:
    lead = (
        "Loss on masked tokens in nats: lower is better. The paper's: validation loss of RoBERTa-base on WikiText-103, whose"
        " base it does not state."
    )
    runs = _sound(material, "mlm")
    theirs = {name: {"valid": row["loss"]} for name, row in paper.TABLE1.items()}
    parts = []
    for recipe in _recipes(runs):
        columns = [Column(split, (recipe,), "loss", split) for split in ("valid", "test")]
        parts.append(_table(runs, recipe, columns, theirs))
    return join([paragraph(lead), *parts]) if parts else Html("")


def fine_tuning(material: Material) -> Html:
    lead = "Accuracy in percent after fine-tuning: higher is better. The paper's: full size."
    parts = _accuracies(_sound(material), "finetune", _SETS, paper.TABLE3)
    return join([paragraph(lead), *parts]) if parts else Html("")


def long_range_arena(material: Material) -> Html:
    lead = "Accuracy in percent on tasks with long inputs: higher is better. The paper's: full size."
    parts = _accuracies(_sound(material), "lra", _LRA, paper.TABLE4)
    return join([paragraph(lead), *parts]) if parts else Html("")


def curves(material: Material) -> Html:
    """The loss on the way, of each setup: runs that differ in attention and seed alone."""
    parts = []
    for setup in setups(material.runs):
        names = dict.fromkeys(x.attention for x in setup.runs)
        order = [*(x for x in PAPER if x in names), *(x for x in names if x not in PAPER)]
        found = material.guarded(setup.label, lambda setup=setup, order=order: loss_curves(setup.runs, order))
        if found:
            parts.append((setup.label, found))
    at_once = [join([tag("h3", label), gallery(found)]) for label, found in parts[:_AT_ONCE]]
    folded = [details(label, gallery(found)) for label, found in parts[_AT_ONCE:]]
    return join([*at_once, *folded])


def _sound(material: Material, task: str | None = None) -> list[Run]:
    """The runs with a result, those of one recipe that differ in more than attention and seed under names of their own."""
    return [
        replace(run, recipe=setup.label)
        for setup in setups([run for run in material.runs if run.finished or run.diverged])
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


def _recipes(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(x.recipe for x in runs))
