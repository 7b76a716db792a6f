"""Trains several runs side by side, one update each in turn, so that all see the same machine load."""

import multiprocessing
import sys
import time
from collections.abc import Mapping
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Semaphore
from pathlib import Path

from cosformer import terminal
from cosformer.experiment import METRICS_FILE, Experiment
from cosformer.json_files import read_lines

_POLL_SECONDS = 0.2
INTERRUPTED = 130


def train_in_turns(experiments: Mapping[Path, Experiment]) -> None:
    """Train each experiment into its folder, in a process of its own; one at a time does an update, then the next.

    Raises RuntimeError if one of them fails; the others are stopped then.
    """
    if len({experiment.train.steps for experiment in experiments.values()}) != 1:
        raise ValueError("runs that take turns need the same number of updates; the last ones would be alone")
    context = multiprocessing.get_context("spawn")  # a fork of a process whose torch has threads can hang
    folders = list(experiments)
    turns = [context.Semaphore(0) for _ in folders]
    processes = [
        context.Process(
            target=_train, args=(experiments[folder], folder, turns[i], turns[(i + 1) % len(folders)]), daemon=True
        )
        for i, folder in enumerate(folders)
    ]
    for process in processes:
        process.start()
    turns[0].release()
    try:
        while any(process.is_alive() for process in processes):
            _check(folders, processes)
            terminal.status(" | ".join(f"{folder.name} {_progress(folder)}" for folder in folders))
            time.sleep(_POLL_SECONDS)
        _check(folders, processes)
    finally:
        for process in processes:
            process.kill()  # not terminate: one that waits for its turn would go on waiting
            process.join()
        terminal.status("")


def _check(folders: list[Path], processes: list[SpawnProcess]) -> None:
    for folder, process in zip(folders, processes, strict=True):
        if process.exitcode == INTERRUPTED:
            raise KeyboardInterrupt
        if process.exitcode:
            raise RuntimeError(f"training into {folder} failed (exit code {process.exitcode}); it said why above")


def _train(experiment: Experiment, folder: Path, mine: Semaphore, next_one: Semaphore) -> None:
    """Runs in a process of its own. The first update waits for its turn; each later one first gives the turn away."""
    from cosformer.train import train

    holds = False

    def wait() -> None:
        nonlocal holds
        if holds:
            next_one.release()
        mine.acquire()
        holds = True

    try:
        train(experiment, folder, quiet=True, wait=wait)  # its scores at the end are part of its last turn
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        next_one.release()


def _progress(folder: Path) -> str:
    lines = [line for _, line in read_lines(folder / METRICS_FILE)[0] if line.get("kind") == "train"]
    return f"update {lines[-1]['step']}, loss {lines[-1]['loss']:.2f}" if lines else "starts"
