"""Tables 1 to 4 and 6: which recipes stand in which column, at either scale."""

import textwrap
from collections.abc import Sequence

from cosformer.lab import numbers as paper
from cosformer.lab.paper.cells import ATTENTIONS, finetune_recipes, lra_recipes, recipes_of
from cosformer.lab.paper.request import Request
from cosformer.lab.records import Run
from cosformer.lab.render.paper_tables import UNLEARNED, Column, Entry, average, entries, paper_table, sources, tasks

_PAPER: dict[str, paper.Table] = {
    "table1": paper.TABLE1,
    "table2": paper.TABLE2,
    "table3": paper.TABLE3,
    "table4": paper.TABLE4,
    "table6": paper.TABLE6,
}
_REMARKS = {
    "table1": "The paper does not say whether its loss is in nats or in bits; 1.915 bits would be 1.327 nats.",
    "table2": "The perplexity is that of a word, also where a model reads bytes and a word is several of them.",
    "table4": "The paper's rows other than cosFormer's equal the public leaderboard's.",
}
_SMALL = "At this scale models and data are far smaller than the paper's: the order may be compared, the level may not."
_WIDTH = 110  # of the lines below a table


def columns(target: str, scale: str, runs: Sequence[Run]) -> list[Column]:
    """What is in each column; averages go over the data sets that every attention with any run has."""
    if target == "table1":
        mlm, *finetune = recipes_of(target, scale)
        return [Column("loss", (mlm,), "loss", "valid"), *tasks(finetune)]
    if target == "table2":
        return [Column(split, recipes_of(target, scale), "word_perplexity", split) for split in ("valid", "test")]
    finetune, lra = finetune_recipes(scale), lra_recipes(scale)
    if target == "table6":
        return [average("fine-tuning", finetune, runs), average("lra", lra, runs)]
    recipes = finetune if target == "table3" else lra
    return [*tasks(recipes), average("average", recipes, runs)]


def cells(target: str, scale: str, runs: Sequence[Run], attentions: Sequence[str] | None = None) -> list[Entry]:
    """Every cell of the table, row by row."""
    return entries(columns(target, scale, runs), runs, attentions or ATTENTIONS[target], _PAPER[target])


def as_text(target: str, scale: str, runs: Sequence[Run], attentions: Sequence[str] | None = None) -> str:
    """The table for people, ``ours / paper`` in each cell, and how our numbers were obtained."""
    found = cells(target, scale, runs, attentions)
    ours = [f"Ours ({scale}), mean ± standard error over seeds:"]
    for words in sources(columns(target, scale, runs), runs):
        ours.append(textwrap.fill(words, _WIDTH, initial_indent="  ", subsequent_indent="    "))
    remarks = [UNLEARNED] if any(entry.unlearned for entry in found) else []
    remarks += [_REMARKS[target]] if target in _REMARKS else []
    remarks += [_SMALL] if scale == "small" else []
    parts = [paper_table(paper.TITLES[target], found).text, "\n".join(ours), "\n".join(remarks)]
    return "\n\n".join(part for part in parts if part)


def show(request: Request, runs: Sequence[Run]) -> None:
    """Print the table and write its cells as JSON lines."""
    print(as_text(request.target, request.scale, runs, request.attentions))
    found = cells(request.target, request.scale, runs, request.attentions)
    print(f"\nEvery cell: {request.write_lines(entry.as_dict(request.target) for entry in found)}")
