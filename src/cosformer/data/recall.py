"""Recall (multi-query associative recall): pairs of a key and its value, then the keys again, each to be answered."""

import numpy as np

from cosformer.data.cache import prepare
from cosformer.data.dataset import Dataset, Description, Writer
from cosformer.data.vocabulary import Words

FILLER = "."


def recall(
    *,
    length: int = 128,
    pairs: int = 8,
    most_pairs: int | None = None,
    keys: int = 64,
    values: int = 64,
    train: int = 100_000,
    valid: int = 1_000,
    test: int = 3_000,
    seed: int = 0,
) -> Dataset:
    """Rows of ``length`` tokens: ``pairs`` times a key and its value (each drawn without repetition), then fillers,
    among which every key comes once more, at a place drawn at random; the token behind it is its value.

    What is asked for are those second values: :class:`cosformer.tasks.recall.Recall` scores them and nothing else. A
    model that carries the row in a state of fixed size must hold all pairs at once (Arora et al. 2023, "Zoology", there
    with places drawn from a power law).

    ``most_pairs``: rows differ in their number of pairs, which is ``pairs``, twice as many, and so on up to
    ``most_pairs``, by turns.
    """
    counts = pair_counts(pairs, most_pairs)
    if most_pairs not in (None, counts[-1]):
        raise ValueError(f"most_pairs={most_pairs}; it must be pairs={pairs} times a power of two")
    if pairs < 1 or counts[-1] > min(keys, values) or 4 * counts[-1] > length:
        raise ValueError(
            f"pairs={counts[-1]} with length={length}, keys={keys}, values={values}; at least 1, at most "
            f"{min(keys, values)} (one of each) and at most a quarter of the length"
        )
    sizes = {"train": train, "valid": valid, "test": test}
    vocabulary = Words([FILLER, *(f"k{i}" for i in range(keys)), *(f"v{i}" for i in range(values))])

    def build(writer: Writer) -> Description:
        for number, (name, size) in enumerate(sizes.items()):
            rng = np.random.default_rng([seed, number])
            rows = np.zeros((size, length), np.int64)
            for turn, count in enumerate(counts):
                mine = rows[turn :: len(counts)]
                mine[:] = draw(rng, len(mine), length=length, pairs=count, keys=keys, values=values)
            writer.split(name, np.uint16, labels=False).add_many(rows.reshape(-1), [length] * size)
        return Description(vocabulary, max_length=length)

    options = {"sizes": sizes, "length": length, "pairs": pairs, "keys": keys, "values": values, "seed": seed}
    options |= {} if most_pairs is None else {"most_pairs": most_pairs}
    return prepare("recall", options, build)


def pair_counts(pairs: int, most_pairs: int | None) -> list[int]:
    """The numbers of pairs that rows have."""
    counts = [pairs]
    while most_pairs is not None and 0 < counts[-1] < most_pairs:
        counts.append(2 * counts[-1])
    return counts


def draw(rng: np.random.Generator, rows: int, *, length: int, pairs: int, keys: int, values: int) -> np.ndarray:
    """``rows`` rows, int64 [rows, length]: id 0 is the filler, then the keys, then the values."""

    def distinct(count: int, among: int) -> np.ndarray:
        return rng.random((rows, among)).argsort(1)[:, :count]

    chosen = 1 + distinct(pairs, keys)
    answers = 1 + keys + distinct(pairs, values)
    tokens = np.zeros((rows, length), np.int64)
    tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = chosen, answers
    places = 2 * pairs + 2 * distinct(pairs, (length - 2 * pairs) // 2)  # of the second key of each pair
    np.put_along_axis(tokens, places, chosen, 1)
    np.put_along_axis(tokens, places + 1, answers, 1)
    return tokens
