"""Rows dealt to splits by shares: the same for a seed, classes in proportion, rows of a group together."""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from cosformer.data.dataset import SPLITS
from cosformer.data.own_files import splits_by_name
from cosformer.data.targets import Row


def deal(
    shares: Sequence[float],
    seed: int,
    *,
    groups: Sequence[Hashable],
    strata: Sequence[Hashable] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[str]:
    """The split of each row. ``shares``: of valid and test; the rest is for training. Rows of equal ``groups`` go
    together (a number for each row: none do). ``strata``: classes, each dealt in proportion. ``sizes``: how much a row
    counts, by default 1.

    Groups are shuffled within their stratum (that of their first row) and go one by one to the split that is furthest
    behind its share; the first group of each stratum is for training, so that training has every class.
    """
    check_shares(shares)
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    rng = np.random.default_rng(seed)
    by_stratum: dict[Hashable, list[list[int]]] = {}
    for rows in members.values():
        by_stratum.setdefault(strata[rows[0]] if strata is not None else None, []).append(rows)
    wanted = dict(zip(SPLITS, (1 - sum(shares), *shares), strict=True))
    taken: dict[str, int] = dict.fromkeys(SPLITS, 0)
    seen = 0
    found = ["train"] * len(groups)
    for units in by_stratum.values():
        for place, index in enumerate(rng.permutation(len(units))):
            rows = units[index]
            size = len(rows) if sizes is None else sum(sizes[row] for row in rows)
            seen += size
            behind = {split: share * seen - taken[split] for split, share in wanted.items() if share > 0}
            split = "train" if place == 0 and strata is not None else max(behind, key=lambda s: behind[s])
            taken[split] += size
            for row in rows:
                found[row] = split
    return found


def check_shares(shares: Sequence[float]) -> None:
    valid, test = shares
    if not (0 < valid < 1 and 0 <= test < 1 and valid + test < 1):
        raise ValueError(
            f"valid={valid}, test={test}: shares of the rows, valid above 0 (models are chosen by it) and both "
            "together below 1"
        )


def split_by_file(rows: list[Row], others: Iterable[str] = ()) -> list[Row]:
    """The rows in the splits that the names of their files say, where they say some; ``others``: further files."""
    files = [row.place.rpartition(", ")[0] for row in rows]
    by_name = splits_by_name(list(dict.fromkeys([*files, *others])))
    if by_name is None:
        return rows
    return [dataclasses.replace(row, split=by_name[file]) for row, file in zip(rows, files, strict=True)]


def with_splits(
    path: str, rows: list[Row], strata: Sequence[Hashable], shares: tuple[float, float], seed: int
) -> list[Row]:
    """Every row in a split. Validation rows that are missing come out of
    the training rows, never out of the test rows. ``strata``: the class of each row."""
    named = {row.split for row in rows}
    first = {row.group: row for row in reversed(rows)}
    for row in rows:
        if row.split != first[row.group].split:
            raise ValueError(
                f"{row.place}: the group {row.group!r} is in {row.split} here and in {first[row.group].split} at "
                f"{first[row.group].place}; leave the option group out, or put its rows into one split"
            )
    if "valid" not in named:
        free = [i for i, row in enumerate(rows) if row.split in (None, "train")]
        valid, test = shares
        dealt = deal(
            (valid, test if named == {None} else 0.0),
            seed,
            groups=[rows[i].group for i in free],
            strata=[strata[i] for i in free],
        )
        for i, split in zip(free, dealt, strict=True):
            rows[i] = dataclasses.replace(rows[i], split=split)
    counts = Counter(row.split for row in rows)
    for name in ("train", "valid"):
        if not counts[name]:
            raise ValueError(
                f"{path}: of {len(rows)} rows none is left for the split {name!r}; give more rows, or other shares "
                "(valid, test)"
            )
    return rows
