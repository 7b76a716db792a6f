"""Chunks of work over several processes, results in order; a chunk's content depends on its number alone."""

import itertools
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_order(make: Callable[[int], T], workers: int | None, chunks: int | None = None) -> Iterator[T]:
    """``make(0), make(1), ...``: ``chunks`` of them or without end. ``workers`` is all usable cores if None."""
    if workers is not None and workers < 1:
        raise ValueError(f"workers={workers}; at least 1")
    workers = workers or len(os.sched_getaffinity(0))
    numbers = itertools.count() if chunks is None else range(chunks)
    if workers == 1 or chunks == 1:
        yield from map(make, numbers)
        return
    # forked, so that a script without a __main__ guard works too; the workers run numpy and nothing with threads
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        tasks = (pool.apply_async(make, (number,)) for number in numbers)
        pending = deque(itertools.islice(tasks, 2 * workers))
        while pending:
            yield pending.popleft().get()
            pending.extend(itertools.islice(tasks, 1))
