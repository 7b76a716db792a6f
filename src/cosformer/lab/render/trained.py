"""The sections about trained models: our scores over the paper's, with the spread over seeds."""

import re
from collections.abc import Iterable, Sequence

from cosformer.lab import numbers as paper
from cosformer.lab.render.html import Html, code, gallery, join, paragraph, table, tag
from cosformer.lab.render.loss_curves import PAPER, loss_curves
from cosformer.lab.render.material import Material
from cosformer.lab.render.outcomes import Mean, Outcome, mean

NOT_RUN = tag("span", "not run", class_="missing")
_SETS = {"qqp": "QQP", "sst2": "SST-2", "mnli": "MNLI", "imdb": "IMDB", "amazon": "AMAZON"}
_LRA = {name: name for name in ("listops", "text", "retrieval", "image", "pathfinder")}


def language_modelling(material: Material) -> Html:
    runs = [x for x in material.outcomes if x.task == "lm"]
    lead = (
        "Perplexity of a word of held-out text, also where a model reads bytes and a word is several: lower is better."
    )
    parts: list[Html] = [paragraph(lead)]
    for recipe in _recipes(runs) or [""]:
        rows = []
        for name in _rows(runs, recipe, paper.TABLE2):
            given = paper.TABLE2.get(name, {})
            cells = [_cell(mean(runs, recipe, name, x, "word_perplexity"), given.get(x)) for x in ("valid", "test")]
            rows.append([_name(name), *cells, _cell(mean(runs, recipe, name, "test", "bits_per_byte"), None, digits=3)])
        header = ["attention", "valid perplexity", "test perplexity", "test bits per byte"]
        parts += [table(header, rows, _title(recipe, "WikiText-103, full size")), _notes(runs, [recipe])]
    return join(parts)


def masked_language_modelling(material: Material) -> Html:
    runs = [x for x in material.outcomes if x.task == "mlm"]
    parts: list[Html] = [
        paragraph("Loss on masked tokens in nats: lower is better. The paper does not state its base.")
    ]
    for recipe in _recipes(runs) or [""]:
        rows = []
        for name in _rows(runs, recipe, paper.TABLE1):
            valid = _cell(mean(runs, recipe, name, "valid", "loss"), paper.TABLE1.get(name, {}).get("loss"), digits=3)
            test = _cell(mean(runs, recipe, name, "test", "loss"), None, digits=3)
            rows.append([_name(name), valid, test])
        title = _title(recipe, "RoBERTa-base on WikiText-103")
        parts += [table(["attention", "valid loss", "test loss"], rows, title), _notes(runs, [recipe])]
    return join(parts)


def fine_tuning(material: Material) -> Html:
    return _accuracies(
        material, "finetune", _SETS, paper.TABLE3, "Accuracy in percent after fine-tuning: higher is better."
    )


def long_range_arena(material: Material) -> Html:
    lead = "Accuracy in percent on tasks with long inputs: higher is better."
    return _accuracies(material, "lra", _LRA, paper.TABLE4, lead)


def curves(material: Material) -> Html:
    """The loss on the way, of each recipe."""
    parts = []
    for recipe in _recipes(material.outcomes):
        of_recipe = [x for x in material.outcomes if x.recipe == recipe]
        names = dict.fromkeys(x.attention for x in of_recipe)
        order = [*(x for x in PAPER if x in names), *(x for x in names if x not in PAPER)]
        found = []
        for what in ("train", "valid"):
            by_name = {name: [getattr(x, what) for x in _furthest(of_recipe, name)] for name in order}
            if any(curve for seeds in by_name.values() for curve in seeds):
                title = f"{'Training' if what == 'train' else 'Validation'} loss"
                found.append(loss_curves(by_name, name=f"{recipe}-{what}", title=title))
        if found:
            parts += [tag("h3", recipe), gallery(found)]
    return join(parts) if parts else paragraph("No run logged a loss: not run.", class_="soft")


def _accuracies(material: Material, prefix: str, columns: dict[str, str], table_of: paper.Table, lead: str) -> Html:
    """One table for each size of the recipes: attentions down, data sets across, and the average where all are there."""
    pattern = re.compile(rf"{prefix}-({'|'.join(columns)})(-.*)?")
    runs = [x for x in material.outcomes if pattern.fullmatch(x.recipe)]
    sizes = dict.fromkeys((pattern.fullmatch(x.recipe) or [""] * 3)[2] or "" for x in runs) or {"": None}
    parts: list[Html] = [paragraph(lead)]
    for size in sizes:
        recipes = {column: f"{prefix}-{key}{size}" for key, column in columns.items()}
        names = _ordered(table_of, [x.attention for x in runs if x.recipe in recipes.values()])
        rows = []
        for name in names:
            given = table_of.get(name, {})
            means = [_accuracy(runs, recipe, name) for recipe in recipes.values()]
            whole = [m.value for m in means if m is not None]
            average = Mean(sum(whole) / len(whole), None, 0, 1) if len(whole) == len(columns) else None
            cells = [_cell(m, given.get(column), scale=100) for m, column in zip(means, columns.values(), strict=True)]
            rows.append([_name(name), *cells, _cell(average, given.get("average"), scale=100)])
        any_run = any(x.recipe in recipes.values() for x in runs)
        title = _title(f"{prefix}-…{size}" if any_run else "", "full size")
        parts += [table(["attention", *columns.values(), "average"], rows, title), _notes(runs, list(recipes.values()))]
    return join(parts)


def _furthest(runs: Sequence[Outcome], name: str) -> list[Outcome]:
    """The finished runs of an attention; while there are none, those that are under way: a mean over both would end early."""
    found = [x for x in runs if x.attention == name]
    return [x for x in found if x.status == "done"] or found


def _accuracy(runs: Sequence[Outcome], recipe: str, name: str) -> Mean | None:
    """On the test split, or where its labels are not public on the validation split."""
    return mean(runs, recipe, name, "test", "accuracy") or mean(runs, recipe, name, "valid", "accuracy")


def _recipes(runs: Iterable[Outcome]) -> list[str]:
    return list(dict.fromkeys(x.recipe for x in runs))


def _rows(runs: Sequence[Outcome], recipe: str, table_of: paper.Table) -> list[str]:
    """What we ran first, then the paper's other rows; both in the paper's order as far as it has them."""
    return _ordered(table_of, [x.attention for x in runs if x.recipe == recipe])


def _ordered(table_of: paper.Table, ours: Sequence[str]) -> list[str]:
    order = list(dict.fromkeys([*table_of, *ours]))
    return [*(name for name in order if name in ours), *(name for name in order if name not in ours)]


def _name(attention: str) -> str:
    return paper.NAMES.get(attention, attention)


def _title(recipe: str, theirs: str) -> str:
    ours = f"recipe {recipe}, mean ± standard error over seeds" if recipe else "not run"
    return f"Ours: {ours}. In small print the paper's: {theirs}."


def _notes(runs: Sequence[Outcome], recipes: Sequence[str]) -> Html:
    """What each recipe says of itself."""
    said = {x.recipe: x.note for x in runs if x.note and x.recipe in recipes}
    items = [tag("li", code(name), f": {said[name]}") for name in recipes if name in said]
    return tag("ul", *items, class_="notes") if items else Html("")


def _cell(ours: Mean | None, theirs: float | None, *, digits: int = 2, scale: float = 1.0) -> Html:
    """Our mean with its error, over what the paper gives."""
    small = []
    if ours is None:
        top = NOT_RUN
    else:
        digits = 0 if scale * ours.value >= 1000 else digits
        error = f" ± {scale * ours.error:,.{digits}f}" if ours.error is not None else ""
        top = Html(f"{scale * ours.value:,.{digits}f}{error}")
        small += ["one seed"] if ours.seeds == 1 else []
        small += ["at the baseline"] if 2 * ours.learned <= ours.seeds else []
    small += [f"paper {theirs:g}"] if theirs is not None else []
    return Html(top + (tag("small", ", ".join(small)) if small else ""))
