"""What a general recipe needs to know about a data set: a few numbers, no arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosformer.data.dataset import Dataset


@dataclass(frozen=True)
class Summary:
    """``rows`` by split; ``tokens`` of the training split, and of its rows the median and the longest of all splits;
    the names of the ``classes``, where there are any."""

    rows: Mapping[str, int]
    tokens: int
    median: int
    longest: int
    classes: tuple[str, ...] | None = None


def summarize(dataset: "Dataset") -> Summary:
    """The summary of a prepared set."""
    import numpy as np

    train = dataset.splits["train"].tokens
    return Summary(
        rows={name: len(split) for name, split in dataset.splits.items()},
        tokens=len(train.flat),
        median=int(np.median(train.lengths)),
        longest=max(int(column.lengths.max(initial=0)) for s in dataset.splits.values() for column in s.documents),
        classes=dataset.class_names,
    )
