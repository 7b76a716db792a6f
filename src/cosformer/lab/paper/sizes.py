"""Table 7: the sizes of the data sets as they are prepared on this machine, beside the paper's."""

from collections.abc import Sequence

from cosformer import terminal
from cosformer.data.cache import prepared_sets
from cosformer.data.dataset import Dataset, open_dataset
from cosformer.lab import numbers as paper
from cosformer.lab.paper.request import Request
from cosformer.lab.records import NOT_RUN, Run

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


def largest() -> dict[str, Dataset]:
    """Of each data set the prepared one with the most training rows (tokens, where it is one stream)."""
    found: dict[str, Dataset] = {}
    for folder in prepared_sets():
        dataset = open_dataset(folder)
        best = found.get(dataset.name)
        if best is None or (size(dataset, "train") or 0) > (size(best, "train") or 0):
            found[dataset.name] = dataset
    return found


def size(dataset: Dataset, split: str) -> int | None:
    """Rows of a split; tokens of a stream of text; None where there is no such split."""
    if split not in dataset.splits:
        return None
    part = dataset.splits[split]
    return len(part) if dataset.num_classes else len(part.tokens.flat)


def show(request: Request, runs: Sequence[Run]) -> None:
    """Print ours beside the paper's; a set that is not prepared is named as such."""
    have = largest()
    rows, values = [], []
    for name, theirs in paper.TABLE7.items():
        dataset = next((have[key] for key in SETS[name] if key in have), None)
        ours = {split: size(dataset, split) if dataset else None for split in SPLITS}
        cells = [f"{_number(ours[split]) if dataset else NOT_RUN} / {_number(theirs[split])}" for split in SPLITS]
        rows.append([name, *cells])
        values.append({"set": name, "ours": ours if dataset else None, "paper": theirs})
    print(f"{paper.TITLES['table7']}\n\n{terminal.table(['ours / paper', *SPLITS], rows)}\n")
    print(
        "Ours: as prepared here (`cosformer data get NAME`), small recipes shrink some; tokens for WikiText-103, rows otherwise."
    )
    print(f"Every row: {request.write_lines(values)}")


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
