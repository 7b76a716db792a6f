"""Train the runs that are missing, each in a process of its own. The same command continues where it was stopped."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cosformer.runs import Run, write_runs
from studies.cosformer2022 import HERE
from studies.cosformer2022.cells import Cell
from studies.cosformer2022.rates import share
from studies.cosformer2022.state import DONE, HALF, MISSING, collect, one_line, place, state

POLL_SECONDS = 0.2
GUESS = 20.0  # minutes of one core that a run takes, where nothing like it has run yet
_ROOT = str(HERE.parents[1])


def train(
    cells: Sequence[Cell],
    runs: Path,
    *,
    jobs: int = 1,
    threads: int | None = 1,
    processes: Callable[[Cell], int] = lambda cell: 1,
    seconds: float | None = None,
    journal: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Cell]:
    """Train ``cells`` into the folder ``runs``, ``jobs`` at a time; returns those that are not done when all is done or
    ``seconds`` are over.

    ``threads``: of each run. ``processes``: of one run, under torchrun if there are several. ``journal``: gets a line
    for every run that ends, and ``rates.jsonl`` beside it for one of a search. An interrupt asks the runs to save and
    end, as does the time.
    """
    end = None if seconds is None else time.monotonic() + seconds
    waiting = [cell for cell in cells if _may_start(cell, runs, say)]
    running: dict[Cell, subprocess.Popen[Any]] = {}
    try:
        while waiting or running:
            ready = [cell for cell in waiting if cell.before is None or state(cell.before, runs)[0] == DONE]
            for cell in ready[: jobs - len(running)]:
                waiting.remove(cell)
                say(f"{'Resume' if state(cell, runs)[0] == HALF else 'Start'} {cell.name}")
                running[cell] = _start(cell, runs, threads, processes(cell))
            if not running:
                break  # what is left starts from a run that failed
            time.sleep(POLL_SECONDS)
            for cell in [cell for cell, process in running.items() if process.poll() is not None]:
                del running[cell]
                say(_ended(cell, runs, journal))
            if end is not None and time.monotonic() >= end:
                say("The time is over; the same command continues from here.")
                break
    finally:
        for process in running.values():
            process.terminate()
        for cell, process in running.items():
            process.wait()
            say(f"Stopped {cell.name}")
    return [cell for cell in cells if state(cell, runs)[0] != DONE]


def _may_start(cell: Cell, runs: Path, say: Callable[[str], None]) -> bool:
    """Whether the cell is missing or half done; what stands in its way is said."""
    kind, why = state(cell, runs)
    if kind not in (MISSING, HALF, DONE):
        say(f"{cell.name}: {why}")
    return kind in (MISSING, HALF)


def _start(cell: Cell, runs: Path, threads: int | None, processes: int) -> subprocess.Popen[Any]:
    """Runs at the lowest priority in its own session, so that we receive keyboard interrupts and forward one."""
    log = _log(cell, runs)
    log.parent.mkdir(parents=True, exist_ok=True)
    words = ["nice", "-n", "19", sys.executable, *launcher(processes), *command(cell, runs, threads)]
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), _ROOT)))
    settings = {"COSFORMER_PLUGINS": "studies.cosformer2022", "PYTHONPATH": path}
    settings |= {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    with log.open("ab") as file:
        options: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": file,
            "stderr": file,
            "start_new_session": True,
        }
        return subprocess.Popen(words, env=os.environ | settings, **options)


def _ended(cell: Cell, runs: Path, journal: Path | None) -> str:
    """What to say of a run whose process has ended."""
    kind, why = state(cell, runs)
    if kind != DONE:
        said = _log(cell, runs).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{cell.name}: {why or 'ended early'}; its last words: {said[-1][:300] if said else 'none'}"
    (run,), _ = collect([cell], runs)
    if journal is not None:
        write_runs(journal if cell.rate is None else journal.with_name("rates.jsonl"), [run], append=True)
    return one_line(run)


def _log(cell: Cell, runs: Path) -> Path:
    return runs / "logs" / f"{cell.name}.log"


def launcher(processes: int) -> list[str]:
    """What stands between python and the arguments of ``cosformer``."""
    if processes == 1:
        return ["-m", "cosformer"]
    # the -- keeps torchrun from reading --run as an option of its own
    return ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "-m", "--", "cosformer"]


def command(cell: Cell, runs: Path, threads: int | None) -> list[str]:
    """The arguments of ``cosformer`` that begin or continue the cell's run."""
    if state(cell, runs)[0] == HALF:
        return ["resume", str(place(cell, runs)), "--quiet"]
    return cell.words(runs / cell.name, None if cell.before is None else place(cell.before, runs), threads)


Costs = Mapping[tuple[str, str], float]  # predicted seconds by recipe and attention, where nothing like it has run


def estimate(cells: Sequence[Cell], lines: Sequence[Run], jobs: int, costs: Costs = MappingProxyType({})) -> str:
    """A sentence with the hours of ``cells``, from the processor time of the runs in ``lines`` or as predicted."""
    if not cells:
        return "Nothing is missing."
    known = [_expected_seconds(cell, lines, costs) for cell in cells]
    hours = sum(60 * GUESS if each is None else each[0] for each in known) / 3600
    text = (
        f"{len(cells)} runs are missing: about {hours:.1f} hours of one core, {hours / jobs:.1f} with {jobs} at a time"
    )
    if predicted := sum(each[0] for each in known if each is not None and each[1]) / 3600:
        text += f"; {predicted:.1f} of these hours are predicted from a few updates"
    if guessed := known.count(None):
        text += f"; {guessed} of them are counted with {GUESS:g} minutes, as nothing like them has run yet"
    return f"{text}."


def minutes(cell: Cell, lines: Sequence[Run], costs: Costs = MappingProxyType({})) -> str:
    """``about 12 min``, from the runs in ``lines``, or ``predicted 12 min``; else that it is not known."""
    found = _expected_seconds(cell, lines, costs)
    if found is None:
        return "time not known"
    return f"{'predicted' if found[1] else 'about'} {max(1, round(found[0] / 60))} min"


def _expected_seconds(cell: Cell, lines: Sequence[Run], costs: Costs) -> tuple[float, bool] | None:
    """From runs of the same recipe and attention, else as predicted (True), else from the recipe's other attentions; a
    search takes its share of the length."""
    part = share(cell.recipe)
    same = [line for line in lines if line.recipe == cell.recipe]
    closest = [line for line in same if line.attention == cell.attention]
    here = part if cell.rate else 1
    if not closest and (cell.recipe, cell.attention) in costs:
        return costs[cell.recipe, cell.attention] / here, True
    full = [(line.cpu_seconds or 0.0) * (part if line.extra.get("rate") else 1) for line in closest or same]
    return (sum(full) / len(full) / here, False) if full else None
