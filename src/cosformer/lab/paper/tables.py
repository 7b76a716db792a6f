"""Tables 1 to 4 and 6: ours, from the lines of the runs, beside the paper's."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cosformer import terminal
from cosformer.lab import numbers as paper
from cosformer.lab.paper.cells import ATTENTIONS, finetune_recipes, lra_recipes, recipes_of
from cosformer.lab.paper.claims import Measure
from cosformer.lab.paper.ledger import Line, sample
from cosformer.lab.paper.request import Request
from cosformer.lab.paper.verdict import NOT_RUN, Sample
from cosformer.lab.render.digits import digits_of

AVERAGE = "average"
_PAPER: dict[str, paper.Table] = {
    "table1": paper.TABLE1,
    "table2": paper.TABLE2,
    "table3": paper.TABLE3,
    "table4": paper.TABLE4,
    "table6": paper.TABLE6,
}
_SETS = {"qqp": "QQP", "sst2": "SST-2", "mnli": "MNLI", "imdb": "IMDB", "amazon": "AMAZON"}
_DIGITS = {"accuracy": 2, "loss": 3, "word_perplexity": 1}  # as the paper prints them
_UNITS = {"accuracy": "accuracy in percent", "loss": "loss in nats", "word_perplexity": "perplexity of a word"}
_REMARKS = {
    "table1": "The paper does not say whether its loss is in nats or in bits; 1.915 bits would be 1.327 nats.",
    "table2": "The perplexity is that of a word, also where a model reads bytes and a word is several of them.",
    "table4": "The paper's rows other than cosFormer's equal the public leaderboard's.",
}
_UNLEARNED = "* No better than a model that ignores its input."
_SMALL = "At this scale models and data are far smaller than the paper's: the order may be compared, the level may not."
_WIDTH = 110  # of the lines below a table


@dataclass(frozen=True)
class Column:
    """``name`` as in the paper's table. ``measure``: our number; None for an average that nothing was run for. ``over``:
    how many data sets the paper's average goes over; 0 where the column is no average."""

    name: str
    measure: Measure | None
    over: int = 0


@dataclass(frozen=True)
class Entry:
    """One cell: ours and the paper's. ``diverged``: seeds without a score, as their loss was not a number. ``digits``: that
    the paper prints."""

    attention: str
    column: str
    ours: Sample
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
        lost = f"{self.diverged} diverged" if self.diverged else ""
        if not self.ours.values:
            return f"{lost or NOT_RUN} / {theirs}"
        star = "*" if self.unlearned else ""
        return f"{_mean(self.ours, self.digits)}{star}{f' ({lost})' if lost else ''} / {theirs}"


def columns(target: str, scale: str, lines: Sequence[Line]) -> list[Column]:
    """What is in each column; averages go over the data sets that every attention with any run has."""
    if target == "table1":
        mlm, *finetune = recipes_of(target, scale)
        return [Column("loss", _score(mlm, metric="loss", split="valid")), *_tasks(finetune)]
    if target == "table2":
        (lm,) = recipes_of(target, scale)
        return [Column(split, _score(lm, metric="word_perplexity", split=split)) for split in ("valid", "test")]
    finetune, lra = finetune_recipes(scale), lra_recipes(scale)
    if target == "table6":
        return [_average("fine-tuning", finetune, lines), _average("lra", lra, lines)]
    recipes = finetune if target == "table3" else lra
    return [*_tasks(recipes), _average(AVERAGE, recipes, lines)]


def entries(target: str, scale: str, lines: Sequence[Line], attentions: Sequence[str] | None) -> list[Entry]:
    """Every cell of the table, row by row."""
    theirs = _PAPER[target]
    found = []
    for name in attentions or ATTENTIONS[target]:
        for column in columns(target, scale, lines):
            measure = column.measure or _score()
            ours = sample(lines, measure, name) if column.measure else Sample(name, (), 0)
            of_cell = [x for x in lines if x["attention"] == name and x["recipe"] in measure.recipes]
            diverged = len({x["seed"] for x in of_cell if x["status"] == "diverged"})
            given = theirs.get(name, {}).get(column.name)
            found.append(Entry(name, column.name, ours, given, diverged, _DIGITS[measure.metric]))
    return found


def as_text(target: str, scale: str, lines: Sequence[Line], attentions: Sequence[str] | None) -> str:
    """The table for people, ``ours / paper`` in each cell, and how our numbers were obtained."""
    heads = columns(target, scale, lines)
    rows: dict[str, list[str]] = {}
    cells = entries(target, scale, lines, attentions)
    for entry in cells:
        rows.setdefault(entry.attention, [entry.attention]).append(str(entry))
    table = terminal.table(["ours / paper", *(head.name for head in heads)], list(rows.values()))
    ours = [f"Ours ({scale}), mean ± standard error over seeds:", *_sources(heads, lines)]
    remarks = [_UNLEARNED] if any(entry.unlearned for entry in cells) else []
    remarks += [_REMARKS[target]] if target in _REMARKS else []
    remarks += [_SMALL] if scale == "small" else []
    return "\n\n".join([paper.TITLES[target], table, "\n".join(ours), *(["\n".join(remarks)] if remarks else [])])


def show(request: Request, lines: Sequence[Line]) -> None:
    """Print the table and write its cells as JSON lines."""
    found = entries(request.target, request.scale, lines, request.attentions)
    print(as_text(request.target, request.scale, lines, request.attentions))
    path = request.write_lines(entry.as_dict(request.target) for entry in found)
    print(f"\nEvery cell: {path}")


def _mean(found: Sample, digits: int) -> str:
    """To the second digit of the error; a single seed to ``digits``."""
    if len(found.values) == 1:
        return f"{found.mean:,.{0 if found.mean >= 1000 else digits}f} (one seed)"
    if found.error > 0:
        digits = digits_of(found.error)
    return f"{found.mean:,.{digits}f} ± {found.error:,.{digits}f}"


def _sources(heads: Sequence[Column], lines: Sequence[Line]) -> Iterator[str]:
    """What is scored in each column, on what, and, once, what its recipe says of itself."""
    notes = {line["recipe"]: str(line.get("note", "")) for line in lines}
    said: set[str] = set()
    for head in heads:
        recipes = list(head.measure.recipes) if head.measure else []
        if head.measure is None or not any(recipe in notes for recipe in recipes):
            words = NOT_RUN
        elif head.over:
            theirs = "" if len(recipes) == head.over else f"; the paper's over {head.over} data sets"
            words = f"over {', '.join(recipes)}{theirs}"
        else:
            split = f" on the {head.measure.split} split" if head.measure.split else ""
            note = "" if recipes[0] in said else notes[recipes[0]]
            words = f"{recipes[0]}, {_UNITS[head.measure.metric]}{split}. {note}"
        said.update(recipes)
        yield textwrap.fill(f"{head.name}: {words}".strip(), _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _tasks(recipes: Sequence[str]) -> list[Column]:
    names = [recipe.removesuffix("-small").partition("-")[2] for recipe in recipes]
    return [
        Column(_SETS.get(n, n) if r.startswith("finetune") else n, _score(r))
        for n, r in zip(names, recipes, strict=True)
    ]


def _score(*recipes: str, metric: str = "accuracy", split: str | None = None) -> Measure:
    unit = {"accuracy": "points", "loss": "nats"}.get(metric, metric)
    return Measure(recipes, metric, metric == "accuracy", unit, split=split, floor=False)


def _average(name: str, recipes: Sequence[str], lines: Sequence[Line]) -> Column:
    return Column(name, average_measure(recipes, lines), over=len(recipes))


def average_measure(recipes: Sequence[str], lines: Sequence[Line]) -> Measure | None:
    """Over those of ``recipes`` that every attention has which has any of them."""
    have = {}
    for line in lines:
        if line["recipe"] in recipes:
            have.setdefault(line["attention"], set()).add(line["recipe"])
    shared = set.intersection(*have.values()) if have else set()
    return _score(*(recipe for recipe in recipes if recipe in shared)) if shared else None
