"""Processes that form gloo groups, started once and given many functions to call."""

import multiprocessing
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = 240  # seconds after which a call counts as hung
GROUPS: dict[int, Any] = {}  # in a child: the group of the first so many ranks, by size
PAIRS: list[Any] = []  # in a child: the groups of ranks 0 and 1, of 2 and 3


class Ranks:
    """``count`` processes; a context, at whose end they are gone."""

    def __init__(self, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(count)]
        self.ends = [here for here, _ in pipes]
        self.processes = [
            context.Process(target=_serve, args=(there, rank, count, str(folder / "rendezvous")), daemon=True)
            for rank, (_, there) in enumerate(pipes)
        ]

    def __enter__(self) -> "Ranks":
        for process in self.processes:
            process.start()
        results(self(dist.get_world_size, ranks=len(self.ends), timeout=300))  # loading torch takes its time
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def __call__(self, function: Callable[..., Any], *args: Any, ranks: int, timeout: float = TIMEOUT) -> list[Any]:
        """The results of ``function(*args)`` on the first ``ranks`` processes; exceptions are returned."""
        for end in self.ends[:ranks]:
            end.send_bytes(pickle.dumps((function, args)))
        return [self._receive(rank, timeout) for rank in range(ranks)]

    def _receive(self, rank: int, timeout: float) -> Any:
        assert self.ends[rank].poll(timeout), f"rank {rank} has not answered within {timeout} seconds"
        return pickle.loads(self.ends[rank].recv_bytes())


def results(found: list[Any]) -> list[Any]:
    """``found`` where no rank failed."""
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


def _serve(end: Any, rank: int, count: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=count, timeout=timedelta(minutes=5)
    )
    for size in range(1, count + 1):
        GROUPS[size] = dist.new_group(range(size), timeout=timedelta(seconds=TIMEOUT))
    for first in range(0, count - 1, 2):
        PAIRS.append(dist.new_group([first, first + 1], timeout=timedelta(seconds=TIMEOUT)))
    while True:
        function, args = pickle.loads(end.recv_bytes())
        try:
            answer = function(*args)
        except Exception as error:
            answer = error
        end.send_bytes(pickle.dumps(answer))
