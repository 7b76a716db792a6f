"""Tables 1 to 4 and 6: ours, from the lines of the runs, beside the paper's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosformer import paper, terminal
from cosformer.reproduce.cells import ATTENTIONS, finetune_recipes, lra_recipes, recipes_of
from cosformer.reproduce.claims import Measure
from cosformer.reproduce.ledger import Line, sample
from cosformer.reproduce.page import spread
from cosformer.reproduce.request import Request
from cosformer.reproduce.verdict import NOT_RUN, Sample

AVERAGE = "average"
_PAPER: dict[str, paper.Table] = {
    "table1": paper.TABLE1,
    "table2": paper.TABLE2,
    "table3": paper.TABLE3,
    "table4": paper.TABLE4,
    "table6": paper.TABLE6,
}
_SETS = {"qqp": "QQP", "sst2": "SST-2", "mnli": "MNLI", "imdb": "IMDB", "amazon": "AMAZON"}


@dataclass(frozen=True)
class Column:
    """``name`` as in the paper's table. ``measure``: our number; None for an average that nothing was run for."""

    name: str
    measure: Measure | None


@dataclass(frozen=True)
class Entry:
    """One cell: ours and the paper's."""

    attention: str
    column: str
    ours: Sample
    paper: float | None

    def as_dict(self, target: str) -> dict[str, Any]:
        """For a line of JSON; ours is null where it was not run."""
        values: dict[str, Any] = {"target": target, "attention": self.attention, "column": self.column}
        found = self.ours
        values |= {"ours": found.mean if found.values else None, "seeds": len(found.values), "values": found.values}
        return values | {"error": found.error if len(found.values) > 1 else None, "paper": self.paper}


def columns(target: str, scale: str, lines: Sequence[Line]) -> list[Column]:
    """What is in each column; averages go over the data sets that every attention with any run has."""
    if target == "table1":
        mlm, *finetune = recipes_of(target, scale)
        return [Column("loss", _score(mlm, metric="loss", split="valid")), *_tasks(finetune)]
    if target == "table2":
        (lm,) = recipes_of(target, scale)
        return [Column(split, _score(lm, metric="word_perplexity", split=split)) for split in ("valid", "test")]
    if target == "table6":
        return [
            Column("fine-tuning", average_measure(finetune_recipes(scale), lines)),
            Column("lra", average_measure(lra_recipes(scale), lines)),
        ]
    recipes = finetune_recipes(scale) if target == "table3" else lra_recipes(scale)
    return [*_tasks(recipes), Column(AVERAGE, average_measure(recipes, lines))]


def entries(target: str, scale: str, lines: Sequence[Line], attentions: Sequence[str] | None) -> list[Entry]:
    """Every cell of the table, row by row."""
    theirs = _PAPER[target]
    found = []
    for name in attentions or ATTENTIONS[target]:
        for column in columns(target, scale, lines):
            ours = sample(lines, column.measure, name) if column.measure else Sample(name, (), 0)
            found.append(Entry(name, column.name, ours, theirs.get(name, {}).get(column.name)))
    return found


def as_text(target: str, scale: str, lines: Sequence[Line], attentions: Sequence[str] | None) -> str:
    """The table for people, ``ours / paper`` in each cell, and what each of our columns is."""
    heads = columns(target, scale, lines)
    rows: dict[str, list[str]] = {}
    for entry in entries(target, scale, lines, attentions):
        theirs = "-" if entry.paper is None else f"{entry.paper:.4g}"
        rows.setdefault(entry.attention, [entry.attention]).append(f"{spread(entry.ours)} / {theirs}")
    table = terminal.table(["ours / paper", *(head.name for head in heads)], list(rows.values()))
    ours = [f"{head.name}: {' and '.join(head.measure.recipes) if head.measure else NOT_RUN}" for head in heads]
    return f"{paper.TITLES[target]}\n\n{table}\n\nOurs ({scale}): {'; '.join(ours)}. Mean ± standard error over seeds."


def show(request: Request, lines: Sequence[Line]) -> None:
    """Print the table and write its cells as JSON lines."""
    found = entries(request.target, request.scale, lines, request.attentions)
    print(as_text(request.target, request.scale, lines, request.attentions))
    path = request.write_lines(entry.as_dict(request.target) for entry in found)
    print(f"\nEvery cell: {path}")


def _tasks(recipes: Sequence[str]) -> list[Column]:
    names = [recipe.removesuffix("-small").partition("-")[2] for recipe in recipes]
    return [
        Column(_SETS.get(n, n) if r.startswith("finetune") else n, _score(r))
        for n, r in zip(names, recipes, strict=True)
    ]


def _score(*recipes: str, metric: str = "accuracy", split: str | None = None) -> Measure:
    unit = {"accuracy": "points", "loss": "nats"}.get(metric, metric)
    return Measure(recipes, metric, metric == "accuracy", unit, resolution=0.0, split=split)


def average_measure(recipes: Sequence[str], lines: Sequence[Line]) -> Measure | None:
    """Over those of ``recipes`` that every attention has which has any of them."""
    have = {}
    for line in lines:
        if line["recipe"] in recipes:
            have.setdefault(line["attention"], set()).add(line["recipe"])
    shared = set.intersection(*have.values()) if have else set()
    return _score(*(recipe for recipe in recipes if recipe in shared)) if shared else None
