"""The ListOps generator: many trees at once, level by level, by the benchmark's rules."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from cosformer.data.parallel import in_order

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE, FIRST_DIGIT = 5, 6  # ids: 0 pads, 1..4 are operators
_OPERATOR_CHANCE = 0.25
_PATIENCE = 1000  # chunks without one kept tree before giving up
_ROOTS = 8192  # trees of one chunk, of which about one in twelve is kept


@dataclass(frozen=True)
class Rules:
    """A node at depth t (the root is at 1) is an operator with chance 1/4 while t < ``max_depth``, else a digit; an
    operator has 2 to ``max_arguments`` arguments. Trees with ``longer_than`` < length < ``shorter_than`` tokens are
    kept, duplicates are not.
    """

    max_depth: int = 10
    max_arguments: int = 10
    longer_than: int = 500
    shorter_than: int = 2000


BENCHMARK = Rules()


def generate(
    rows: int, *, seed: int, rules: Rules = BENCHMARK, workers: int | None = None
) -> Iterator[tuple[np.ndarray, int]]:
    """``rows`` different trees as (ids uint8, value). The result depends on ``seed`` and not on ``workers``."""
    depth, arguments = rules.max_depth, rules.max_arguments
    if rows < 0 or depth < 2 or arguments < 2:
        raise ValueError(f"rows={rows} must be >= 0, max_depth={depth} and max_arguments={arguments} at least 2")
    # one chunk brings some 680 rows: for fewer than that no second process is worth its start
    chunks = in_order(partial(make_chunk, seed=seed, rules=rules), 1 if rows < 600 else workers)
    yield from _unique(chunks, rows, rules)


def _unique(
    chunks: Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]], rows: int, rules: Rules = BENCHMARK
) -> Iterator[tuple[np.ndarray, int]]:
    seen: set[bytes] = set()
    if rows == 0:
        return
    barren = 0
    for flat, offsets, values in chunks:
        barren = 0 if len(values) else barren + 1
        if barren == _PATIENCE:
            raise ValueError(
                f"no tree of {rules.longer_than} to {rules.shorter_than} tokens among {_PATIENCE * _ROOTS:,}; such "
                f"depths and numbers of arguments do not reach that length: take the defaults ({BENCHMARK.max_depth} "
                f"and {BENCHMARK.max_arguments}) or larger ones"
            )
        for i, value in enumerate(values.tolist()):
            tokens = flat[offsets[i] : offsets[i + 1]]
            digest = hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
            if digest not in seen:
                seen.add(digest)
                yield tokens, value
                if len(seen) == rows:
                    return


def make_chunk(chunk: int, *, seed: int, rules: Rules = BENCHMARK) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All kept trees of chunk number ``chunk``: (flat ids, offsets, values)."""
    levels = _grow(np.random.default_rng([seed, chunk]), rules)
    sizes = _sizes(levels)
    kept = np.flatnonzero((sizes[0] > rules.longer_than) & (sizes[0] < rules.shorter_than))
    levels, sizes = _keep_roots(levels, sizes, kept)
    offsets = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(sizes[0], out=offsets[1:])
    return _serialise(levels, sizes, offsets), offsets, _values(levels)


class _Level:
    """The nodes of one depth, siblings adjacent: ``parent`` (index in the level above), ``token``, ``arguments``."""

    def __init__(self, parent: np.ndarray, token: np.ndarray, arguments: np.ndarray) -> None:
        self.parent, self.token, self.arguments = parent, token, arguments
        self.is_operator = arguments > 0


def _grow(rng: np.random.Generator, rules: Rules) -> list[_Level]:
    parent = np.arange(_ROOTS)
    root = parent
    length = np.zeros(_ROOTS, np.int64)
    levels: list[_Level] = []
    for depth in range(1, rules.max_depth + 1):
        n = len(parent)
        operator = rng.random(n) <= _OPERATOR_CHANCE if depth < rules.max_depth else np.zeros(n, bool)
        token = np.where(operator, rng.integers(1, CLOSE, n), rng.integers(FIRST_DIGIT, FIRST_DIGIT + 10, n))
        arguments = np.where(operator, rng.integers(2, rules.max_arguments + 1, n), 0)
        length += np.bincount(root, 1.0 + operator, minlength=_ROOTS).astype(np.int64)
        # a tree that is too long already will be refused: it need not grow on
        arguments[length[root] >= rules.shorter_than] = 0
        levels.append(_Level(parent, token.astype(np.uint8), arguments))
        parent = np.repeat(np.arange(n), arguments)
        root = root[parent]
        if len(parent) == 0:
            break
    return levels


def _sizes(levels: list[_Level]) -> list[np.ndarray]:
    """Tokens below and including each node, per level. Trees cut short while growing keep a size that is too long."""
    sizes: list[np.ndarray] = [np.empty(0, np.int64)] * len(levels)
    for d in reversed(range(len(levels))):
        level = levels[d]
        # the token tells an operator, also where its arguments were cut away
        sizes[d] = 1 + (level.token < CLOSE).astype(np.int64)
        if d + 1 < len(levels):
            below = np.bincount(levels[d + 1].parent, sizes[d + 1], minlength=len(level.token))
            sizes[d] += below.astype(np.int64)
    return sizes


def _keep_roots(
    levels: list[_Level], sizes: list[np.ndarray], kept: np.ndarray
) -> tuple[list[_Level], list[np.ndarray]]:
    index = kept
    new_levels, new_sizes = [], []
    renumbered = np.arange(len(kept))
    for d, (level, size) in enumerate(zip(levels, sizes, strict=True)):
        new_levels.append(_Level(renumbered, level.token[index], level.arguments[index]))
        new_sizes.append(size[index])
        if d + 1 < len(levels):
            place = np.full(len(level.token), -1)
            place[index] = np.arange(len(index))
            index = np.flatnonzero(place[levels[d + 1].parent] >= 0)
            renumbered = place[levels[d + 1].parent[index]]
    return new_levels, new_sizes


def _values(levels: list[_Level]) -> np.ndarray:
    """The value of every root, from the leaves up."""
    values = np.empty(0, np.int64)
    for d in reversed(range(len(levels))):
        level = levels[d]
        found = level.token.astype(np.int64) - FIRST_DIGIT
        owners = np.flatnonzero(level.is_operator)
        if len(owners):
            counts = level.arguments[owners]
            starts = np.cumsum(counts) - counts
            group = np.repeat(np.arange(len(owners)), counts)
            # sorted within each group: least, greatest and median are then places
            ordered = values[np.lexsort((values, group))]
            low, high = ordered[starts + (counts - 1) // 2], ordered[starts + counts // 2]
            sums = np.add.reduceat(values, starts) % 10
            results = (ordered[starts], ordered[starts + counts - 1], (low + high) // 2, sums)
            found[owners] = np.choose(level.token[owners] - 1, results)
        values = found
    return values


def _serialise(levels: list[_Level], sizes: list[np.ndarray], offsets: np.ndarray) -> np.ndarray:
    """The tokens in reading order: an operator, its arguments, ``]``."""
    flat = np.zeros(int(offsets[-1]), np.uint8)
    start = offsets[:-1]
    for d, (level, size) in enumerate(zip(levels, sizes, strict=True)):
        flat[start] = level.token
        flat[(start + size - 1)[level.is_operator]] = CLOSE
        if d + 1 < len(levels):
            parent, below = levels[d + 1].parent, sizes[d + 1]
            before = np.cumsum(below) - below  # tokens of all nodes left of this one on its level
            first = np.zeros(len(level.token), np.int64)
            owners = np.flatnonzero(level.is_operator)
            counts = level.arguments[owners]
            first[owners] = before[np.cumsum(counts) - counts] if len(owners) else 0
            start = start[parent] + 1 + before - first[parent]
    return flat
