"""The sections about trained models: our scores beside the paper's, and how the loss fell."""

import re
from collections.abc import Iterable, Sequence

from cosformer.lab import numbers as paper
from cosformer.lab.records import Run
from cosformer.lab.render.html import Html, gallery, join, paragraph, tag
from cosformer.lab.render.loss_curves import PAPER, loss_curves
from cosformer.lab.render.material import Material
from cosformer.lab.render.paper_tables import UNLEARNED, Column, average, entries, paper_table, sources, tasks

_SETS = ("qqp", "sst2", "mnli", "imdb", "amazon")
_LRA = ("listops", "text", "retrieval", "image", "pathfinder")


def language_modelling(material: Material) -> Html:
    lead = (
        "Perplexity of a word of held-out text, also where a model reads bytes and a word is several: lower is better."
        " The paper's: WikiText-103, full size."
    )
    runs = [x for x in material.runs if x.task == "lm"]
    parts = []
    for recipe in _recipes(runs) or [""]:
        recipes = (recipe,) if recipe else ()
        columns = [Column(split, recipes, "word_perplexity", split) for split in ("valid", "test")]
        columns.append(Column("test, bits per byte", recipes, "bits_per_byte", "test"))
        parts.append(_table(runs, recipe, columns, paper.TABLE2))
    return join([paragraph(lead), *parts])


def masked_language_modelling(material: Material) -> Html:
    lead = (
        "Loss on masked tokens in nats: lower is better. The paper's: validation loss of RoBERTa-base on WikiText-103, whose"
        " base it does not state."
    )
    runs = [x for x in material.runs if x.task == "mlm"]
    theirs = {name: {"valid": row["loss"]} for name, row in paper.TABLE1.items()}
    parts = []
    for recipe in _recipes(runs) or [""]:
        columns = [Column(split, (recipe,) if recipe else (), "loss", split) for split in ("valid", "test")]
        parts.append(_table(runs, recipe, columns, theirs))
    return join([paragraph(lead), *parts])


def fine_tuning(material: Material) -> Html:
    lead = "Accuracy in percent after fine-tuning: higher is better. The paper's: full size."
    return join([paragraph(lead), *_accuracies(material.runs, "finetune", _SETS, paper.TABLE3)])


def long_range_arena(material: Material) -> Html:
    lead = "Accuracy in percent on tasks with long inputs: higher is better. The paper's: full size."
    return join([paragraph(lead), *_accuracies(material.runs, "lra", _LRA, paper.TABLE4)])


def curves(material: Material) -> Html:
    """The loss on the way, of each recipe."""
    parts = []
    for recipe in _recipes(material.runs):
        of_recipe = [x for x in material.runs if x.recipe == recipe]
        names = dict.fromkeys(x.attention for x in of_recipe)
        order = [*(x for x in PAPER if x in names), *(x for x in names if x not in PAPER)]
        found = material.guarded(recipe, lambda runs=of_recipe, order=order: loss_curves(runs, order))
        if found:
            parts += [tag("h3", recipe), gallery(found)]
    return join(parts) if parts else paragraph("No run logged a loss: not run.", class_="soft")


def _accuracies(runs: Sequence[Run], prefix: str, names: Sequence[str], theirs: paper.Table) -> list[Html]:
    """One table for each size of the recipes: attentions down, data sets across, and the average."""
    pattern = re.compile(rf"{prefix}-(?:{'|'.join(names)})(-.*)?")
    sizes = dict.fromkeys(match[1] or "" for x in runs if (match := pattern.fullmatch(x.recipe))) or {"": None}
    parts = []
    for size in sizes:
        recipes = [f"{prefix}-{name}{size}" for name in names]
        of_size = [x for x in runs if x.recipe in recipes]
        columns = [*tasks(recipes), average("average", recipes, of_size)]
        parts.append(_table(of_size, f"{prefix}-…{size}" if of_size else "", columns, theirs))
    return parts


def _table(runs: Sequence[Run], recipe: str, columns: Sequence[Column], theirs: paper.Table) -> Html:
    """What we ran first, then the paper's other rows; both in the paper's order as far as it has them."""
    used = {name for column in columns for name in column.recipes}
    ours = [x.attention for x in runs if x.recipe in used]
    order = list(dict.fromkeys([*theirs, *ours]))
    names = [*(name for name in order if name in ours), *(name for name in order if name not in ours)]
    cells = entries(columns, runs, names, theirs)
    title = f"Ours: recipe {recipe}, mean ± standard error over seeds." if recipe else "Ours: not run."
    notes = (
        [*sources(columns, runs), *([UNLEARNED] if any(entry.unlearned for entry in cells) else [])] if recipe else []
    )
    listed = tag("ul", *(tag("li", note) for note in notes), class_="notes") if notes else Html("")
    return join([paper_table(title, cells, paper.NAMES).html, listed])


def _recipes(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(x.recipe for x in runs))
