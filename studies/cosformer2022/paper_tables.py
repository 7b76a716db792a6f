"""The paper's tables of trained models, ours beside the paper's in each cell: ``31.65 ± 0.16 / 36.37``."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cosformer.report.overview import is_sensible, reads_words
from cosformer.report.table import Table
from cosformer.runs import NOT_RUN, Run, SeedScores, seed_scores, with_error
from studies.cosformer2022 import paper

UNLEARNED = "* No better than a model that ignores its input."
_DIGITS = {"accuracy": 2, "loss": 3, "word_perplexity": 1, "bits_per_byte": 3}  # as the paper prints them
UNITS = {
    "accuracy": "accuracy in percent",
    "loss": "loss in nats",
    "word_perplexity": "perplexity of a word",
    "bits_per_byte": "bits per byte",
}


@dataclass(frozen=True)
class Column:
    """``name`` as in the paper's table. ``recipes``: whose scores are averaged seed by seed; () where none was run.
    ``split``: of the scores; None: the one that counts. ``over``: how many data sets the paper's average goes over, 0
    for no average."""

    name: str
    recipes: tuple[str, ...]
    metric: str = "accuracy"
    split: str | None = None
    over: int = 0


@dataclass(frozen=True)
class Entry:
    """One cell: ours and the paper's. ``diverged``: seeds without a score, as their loss was not a number. ``digits``:
    that the paper prints."""

    attention: str
    column: str
    ours: SeedScores
    paper: float | None
    diverged: int
    digits: int

    @property
    def unlearned(self) -> bool:
        """Whether most of the seeds with a score did not learn."""
        return bool(self.ours.values) and 2 * self.ours.learned <= len(self.ours.values)

    def as_dict(self, target: str) -> dict[str, Any]:
        """For a line of JSON; ours is null where it was not run."""
        values: dict[str, Any] = {"target": target, "attention": self.attention, "column": self.column}
        found = self.ours
        values |= {"ours": found.mean if found.values else None, "seeds": len(found.values), "values": found.values}
        values |= {"error": found.error if len(found.values) > 1 else None, "learned": found.learned}
        return values | {"diverged": self.diverged, "paper": self.paper}

    def __str__(self) -> str:
        """``31.65 ± 0.16 / 36.37``; with a star where most seeds did not learn."""
        theirs = "-" if self.paper is None else f"{self.paper:.{self.digits}f}"
        return f"{self.alone} / {theirs}"

    @property
    def alone(self) -> str:
        """Ours, without the paper's."""
        lost = f"{self.diverged} diverged" if self.diverged else ""
        if not self.ours.values:
            return lost or NOT_RUN
        star = "*" if self.unlearned else ""
        if len(self.ours.values) > 1:
            ours = with_error(self.ours.mean, self.ours.error)
        else:
            ours = f"{with_error(self.ours.mean, None, 0 if self.ours.mean >= 1000 else self.digits)} (one seed)"
        return f"{ours}{star}{f' ({lost})' if lost else ''}"


def entries(
    columns: Sequence[Column], runs: Sequence[Run], attentions: Sequence[str], theirs: paper.Table
) -> list[Entry]:
    """Every cell of the table, row by row."""
    found = []
    columns = [_readable(column, runs) for column in columns]
    for name in attentions:
        for column in columns:
            gone = {x.seed for x in runs if x.attention == name and x.recipe in column.recipes and x.diverged}
            ours, given = scores(runs, column, name), theirs.get(name, {}).get(column.name)
            found.append(Entry(name, column.name, ours, given, len(gone), _DIGITS[column.metric]))
    return found


def _readable(column: Column, runs: Sequence[Run]) -> Column:
    """Bits per byte, under its own name, in place of a word perplexity that has no meaning here."""
    found = [x.scores.get(column.split or x.evaluation, {}) for x in runs if x.recipe in column.recipes]
    of_bytes = [x for x in found if "bits_per_byte" in x and column.metric in x and not reads_words(x)]
    if column.metric != "word_perplexity" or all(is_sensible(x["word_perplexity"]) for x in of_bytes):
        return column
    return replace(column, name=f"{column.name}, bits per byte", metric="bits_per_byte")


def paper_table(title: str, cells: Sequence[Entry], names: dict[str, str] | None = None) -> Table:
    """``names``: how a row is called, where that is not the attention's name."""
    rows: dict[str, list[str]] = {}
    compared = any(entry.paper is not None for entry in cells)
    for entry in cells:
        row = rows.setdefault(entry.attention, [(names or {}).get(entry.attention, entry.attention)])
        row.append(str(entry) if compared else entry.alone)
    header = ["ours / paper" if compared else "ours", *dict.fromkeys(entry.column for entry in cells)]
    return Table(title, header, list(rows.values()))


def sources(columns: Sequence[Column], runs: Sequence[Run]) -> Iterator[str]:
    """What is scored in each column, on what, and, once, what its recipe says of itself."""
    notes = {run.recipe: run.note for run in runs}
    said: set[str] = set()
    for column in columns:
        if not any(recipe in notes for recipe in column.recipes):
            words = NOT_RUN
        elif column.over:
            theirs = "" if len(column.recipes) == column.over else f"; the paper's over {column.over} data sets"
            words = f"over {', '.join(column.recipes)}{theirs}"
        else:
            (recipe,) = column.recipes
            split = f" on the {column.split} split" if column.split else ""
            words = f"{recipe}, {UNITS[column.metric]}{split}. {'' if recipe in said else notes[recipe]}"
        said.update(column.recipes)
        yield f"{column.name}: {words}".strip()


def scores(runs: Sequence[Run], column: Column, attention: str) -> SeedScores:
    """Ours of one cell; accuracies in percent. An average has one value for each seed that has all of its recipes."""
    evaluations = {x.recipe: column.split or x.evaluation for x in runs if x.scores}

    def of(recipe: str, chosen: Sequence[Run]) -> SeedScores:
        return seed_scores(chosen, recipe, attention, evaluations.get(recipe, "test"), column.metric)

    if len(column.recipes) == 1:
        found = of(column.recipes[0], runs)
    else:
        values, learned = [], 0
        for seed in sorted({run.seed for run in runs}):
            parts = [of(recipe, [run for run in runs if run.seed == seed]) for recipe in column.recipes]
            if parts and all(part.values for part in parts):
                values.append(statistics.fmean(part.mean for part in parts))
                learned += any(part.learned for part in parts)
        found = SeedScores(attention, tuple(values), learned)
    scale = 100 if column.metric == "accuracy" else 1
    return SeedScores(attention, tuple(scale * value for value in found.values), found.learned)


def average(name: str, recipes: Sequence[str], runs: Sequence[Run]) -> Column:
    """Over those of ``recipes`` that every attention has which has any of them."""
    have: dict[str, set[str]] = {}
    for run in runs:
        if run.recipe in recipes:
            have.setdefault(run.attention, set()).add(run.recipe)
    shared = set.intersection(*have.values()) if have else set()
    return Column(name, tuple(recipe for recipe in recipes if recipe in shared), over=len(recipes))


def tasks(recipes: Sequence[str]) -> list[Column]:
    """A column of accuracies for each of the Long-Range Arena's or the fine-tuning recipes, named as in the paper."""
    parts = [recipe.split("-")[:2] for recipe in recipes]
    return [
        Column(paper.FINETUNE.get(name, name) if kind == "finetune" else name, (recipe,))
        for (kind, name), recipe in zip(parts, recipes, strict=True)
    ]
