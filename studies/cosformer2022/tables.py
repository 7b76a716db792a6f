"""The paper's tables: 1 to 4 and 6 from runs, 5 from the text benchmark, 7 from the data sets as prepared here."""

import textwrap
from collections.abc import Sequence
from typing import Any

from benchmarks.text import tables
from cosformer.data import Dataset, open_dataset, prepared_sets
from cosformer.report.measurements import Results, read_results
from cosformer.report.overview import shown
from cosformer.report.table import Table
from cosformer.runs import NOT_RUN, Run
from studies.cosformer2022 import PROGRAM, Request, paper
from studies.cosformer2022.cells import ATTENTIONS, recipes_of
from studies.cosformer2022.paper_tables import UNLEARNED, Column, Entry, average, entries, paper_table, sources, tasks

SETS = {
    "WikiText-103": ("wikitext103",),
    "QQP": ("qqp",),
    "SST-2": ("sst2",),
    "MNLI": ("mnli",),
    "IMDB": ("imdb", "text"),
    "AMAZON": ("amazon",),
    "ListOps": ("listops", "listops-small"),
    "AAN": ("retrieval",),
    "CIFAR-10": ("image",),
    "Pathfinder": ("pathfinder", "pathfinder-small"),
}
SPLITS = ("train", "valid", "test")
COMMITTED = "text.json"
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
    (_, *finetune), lra = recipes_of("table3", scale), recipes_of("table4", scale)
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


def show_scores(request: Request, runs: Sequence[Run]) -> None:
    """Print a table of trained models and write its cells as JSON lines."""
    print(as_text(request.target, request.scale, runs, request.attentions))
    found = cells(request.target, request.scale, runs, request.attentions)
    print(f"\nEvery cell: {request.write_lines(entry.as_dict(request.target) for entry in found)}")


def speeds_of(request: Request) -> Results | None:
    """Results of ``python -m benchmarks text``: in the runs' folder, measured now, or (to show) as committed."""
    path = request.out / COMMITTED
    if path.exists():
        return read_results(path)
    if not request.measure:
        committed = request.docs / "results" / COMMITTED
        return read_results(committed) if committed.exists() else None
    from cosformer.bench import runner

    given: dict[str, Any] = {"attentions": request.attentions and ",".join(request.attentions)}
    given |= {name: getattr(request, name) for name in ("lengths", "batch", "width")}
    options = {name: value for name, value in given.items() if value is not None}
    return runner.measure("benchmarks.text", options, ["table5"], program=PROGRAM, save=path)


def show_speeds(request: Request, runs: Sequence[Run]) -> None:
    """Table 5: speed and memory of the byte-level text classifier."""
    speeds = speeds_of(request)
    if speeds is None:
        print("Table 5: not run; `python -m studies.cosformer2022 table5` measures it")
        return
    print("\n\n".join([*(table.text for table in tables(speeds)), speeds.source]))
    print(f"\nEvery row: {request.write_lines(m.line() for m in speeds.measurements)}")


def largest() -> dict[str, Dataset]:
    """Of each data set the prepared one with the most training rows (tokens, where it is one stream)."""
    by_size = sorted(map(open_dataset, prepared_sets()), key=lambda dataset: size(dataset, "train") or 0)
    return {dataset.name: dataset for dataset in by_size}


def size(dataset: Dataset, split: str) -> int | None:
    """Rows of a split; tokens of a stream of text; None where there is no such split."""
    if split not in dataset.splits:
        return None
    part = dataset.splits[split]
    return len(part) if dataset.num_classes else len(part.tokens.flat)


def show_sizes(request: Request, runs: Sequence[Run]) -> None:
    """Table 7: print ours beside the paper's; a set that is not prepared is named as such."""
    have = largest()
    rows, values = [], []
    for name, theirs in paper.TABLE7.items():
        dataset = next((have[key] for key in SETS[name] if key in have), None)
        ours = {split: size(dataset, split) if dataset else None for split in SPLITS}
        cells = [f"{shown(ours[split]) if dataset else NOT_RUN} / {shown(theirs[split])}" for split in SPLITS]
        rows.append([name, *cells])
        values.append({"set": name, "ours": ours if dataset else None, "paper": theirs})
    print(f"{paper.TITLES['table7']}\n\n{Table('', ['ours / paper', *SPLITS], rows).text}\n")
    print(
        "Ours: as prepared here (`cosformer data get NAME`), small recipes shrink some; tokens for WikiText-103, rows "
        "otherwise."
    )
    print(f"Every row: {request.write_lines(values)}")
