"""Train the cells of a ledger: each in a process of its own, within a time, pausing while somebody measures; continue where it stopped."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from cosformer import terminal
from cosformer.report.records import Run
from studies.cosformer2022.cells import Cell
from studies.cosformer2022.rates import QUARTER
from studies.cosformer2022.state import DONE, HALF, MISSING, append_line, collect, one_line, place, state

POLL_SECONDS = 0.2
GUESS = 20.0  # minutes of one core that a run takes, where nothing like it has run yet
# to finish an update or an evaluation and save; after that the run is killed, and resumes all the same
STOP_SECONDS = 300.0


@dataclass
class Job:
    """A cell that is running."""

    cell: Cell
    process: subprocess.Popen[bytes]
    log: IO[bytes]


@dataclass
class Queue:
    """Runs ``cells`` into the folder ``runs``, ``jobs`` at a time. ``budget``: seconds, None without limit. ``pause_while``: a
    file; while another process holds an exclusive ``flock`` on it, the runs stand still. ``threads``: of each run. ``journal``: a
    file that gets the line of every run as it ends. ``background``: at the lowest priority, behind everything else."""

    runs: Path
    cells: Sequence[Cell]
    jobs: int = 1
    budget: float | None = None
    pause_while: Path | None = None
    threads: int | None = 1
    processes: Callable[[Cell], int] = lambda cell: 1  # of one run, under torchrun if there are several
    say: Callable[[str], None] = print
    journal: Path | None = None
    background: bool = False
    running: list[Job] = field(default_factory=list)
    _over: set[Cell] = field(default_factory=set)  # done, or not to be tried again in this call
    _stopping: bool = False

    def go(self) -> list[Cell]:
        """Until all is done, the time is over or a signal comes; returns the cells that are not done."""
        self.runs.mkdir(parents=True, exist_ok=True)
        with (self.runs / ".queue").open("a") as lock:
            _lock(lock, self.runs)
            before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
            try:
                self._work(lock)
            finally:
                self._end_all()
                for number, handler in before.items():
                    signal.signal(number, handler)
        return [cell for cell in self.cells if state(cell, self.runs)[0] != DONE]

    def _work(self, lock: IO[str]) -> None:
        end = None if self.budget is None else time.monotonic() + self.budget
        while not self._stopping:
            if end is not None and time.monotonic() >= end:
                self.say("The time is over; the same command continues from here.")
                return
            while len(self.running) < self.jobs and (cell := self._next()) is not None:
                self._start(cell, lock)
            if not self.running:
                return
            self._pause()
            self._collect()
            self._show()
            time.sleep(POLL_SECONDS)

    def _next(self) -> Cell | None:
        """The first cell that can run now."""
        busy = {job.cell for job in self.running}
        for cell in self.cells:
            if cell in busy or cell in self._over:
                continue
            kind, why = state(cell, self.runs)
            if kind in (MISSING, HALF):
                if cell.before is None or state(cell.before, self.runs)[0] == DONE:
                    return cell
                continue
            self._over.add(cell)
            if kind != DONE:
                self.say(f"{cell.name}: {why}")
        return None

    def _start(self, cell: Cell, lock: IO[str]) -> None:
        resumes = state(cell, self.runs)[0] == HALF
        words = command(cell, self.runs, self.threads)
        (self.runs / "logs").mkdir(exist_ok=True)
        log = (self.runs / "logs" / f"{cell.name}.log").open("ab")
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        self.say(f"{'Resume' if resumes else 'Start'} {cell.name}")
        process = subprocess.Popen(
            [sys.executable, *launcher(self.processes(cell)), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | threads,
            start_new_session=True,  # an interrupt from the keyboard reaches us alone; we pass it on once
            pass_fds=[lock.fileno()],  # a run that outlives us keeps the folder locked
        )
        if self.background:
            _lower_priority(process.pid)
        self.running.append(Job(cell, process, log))
        self._note_processes(lock)

    def _note_processes(self, lock: IO[str]) -> None:
        """Write who works here into the locked file, for :func:`send`: the queue itself first."""
        lock.seek(0)
        lock.truncate()
        lock.write("\n".join(str(pid) for pid in (os.getpid(), *(job.process.pid for job in self.running))) + "\n")
        lock.flush()

    def _collect(self) -> None:
        for job in [job for job in self.running if job.process.poll() is not None]:
            self.running.remove(job)
            job.log.close()
            kind, why = state(job.cell, self.runs)
            self._over.add(job.cell)
            terminal.status("")
            if kind == DONE:
                line = collect([job.cell], self.runs)[0][0]
                if self.journal is not None:
                    append_line(line, self.journal)
                self.say(one_line(line))
            else:
                self.say(f"{job.cell.name}: {why or 'ended early'}; {_last_words(Path(job.log.name))}")

    def _pause(self) -> None:
        """Stand still while somebody measures; a run's processor time does not count it."""
        if self.pause_while is None or not _is_held(self.pause_while):
            return
        for job in self.running:
            _signal(job, signal.SIGSTOP)
        while _is_held(self.pause_while) and not self._stopping:
            time.sleep(POLL_SECONDS)
        for job in self.running:
            _signal(job, signal.SIGCONT)

    def _show(self) -> None:
        if self.running and sys.stderr.isatty():
            terminal.status(" | ".join(map(self._where, self.running)))

    def _where(self, job: Job) -> str:
        return f"{job.cell.name} {_progress(place(job.cell, self.runs))}"

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _end_all(self) -> None:
        """Ask the running ones to save and end."""
        terminal.status("")
        for job in self.running:
            _signal(job, signal.SIGTERM)
        for job in self.running:
            try:
                job.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()
            job.log.close()
            self.say(f"Stopped {self._where(job)}")
        self.running.clear()


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


def send(runs: Path, number: signal.Signals) -> int:
    """To the queue that works in ``runs`` and to its runs, as SIGSTOP or SIGCONT; returns how many processes there are. The
    queue comes first, so that it starts nothing while its runs are being stopped."""
    reached = 0
    for position, word in enumerate((runs / ".queue").read_text().split() if (runs / ".queue").exists() else ()):
        try:
            # a run leads a group of its own; the queue belongs to whoever started it
            os.kill(int(word), number) if position == 0 else os.killpg(int(word), number)
            reached += 1
        except (ProcessLookupError, PermissionError):
            continue  # it has ended
    return reached


def estimate(cells: Sequence[Cell], lines: Sequence[Run], jobs: int) -> str:
    """A sentence with the hours of ``cells``, from the processor time of the runs in ``lines``."""
    seconds, guessed = 0.0, 0
    for cell in cells:
        found = _expected_seconds(cell, lines)
        seconds += 60 * GUESS if found is None else found
        guessed += found is None
    if not cells:
        return "Nothing is missing."
    hours = seconds / 3600
    text = (
        f"{len(cells)} runs are missing: about {hours:.1f} hours of one core, {hours / jobs:.1f} with {jobs} at a time"
    )
    if guessed:
        text += f"; {guessed} of them are counted with {GUESS:g} minutes, as nothing like them has run yet"
    return f"{text}."


def minutes(cell: Cell, lines: Sequence[Run]) -> str:
    """``about 12 min``, from the runs in ``lines``; of what has never run, that it is not known."""
    found = _expected_seconds(cell, lines)
    return "time not known" if found is None else f"about {max(1, round(found / 60))} min"


def _expected_seconds(cell: Cell, lines: Sequence[Run]) -> float | None:
    """From runs of the same recipe, with the same attention if there are any; a search is a quarter as long."""
    same = [line for line in lines if line.recipe == cell.recipe]
    closest = [line for line in same if line.attention == cell.attention] or same
    if not closest:
        return None
    full = [(line.cpu_seconds or 0.0) * (QUARTER if line.extra.get("rate") else 1) for line in closest]
    return sum(full) / len(full) / (QUARTER if cell.rate else 1)


def _lower_priority(pid: int) -> None:
    """A run's, never our own. Not idle scheduling: on a busy machine a run would stand still for hours, its lock in hand."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        # where Linux shares the processors between sessions first, the above counts within the run's own session only
        Path(f"/proc/{pid}/autogroup").write_text("19")


def _signal(job: Job, number: signal.Signals) -> None:
    if job.process.poll() is None:
        os.killpg(job.process.pid, number)


def _lock(file: IO[str], runs: Path) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"another queue, or a run it left behind, works in {runs}; wait, or give other --runs"
        ) from None


def _is_held(path: Path) -> bool:
    """Whether another process holds an exclusive ``flock`` on ``path``."""
    import fcntl

    if not path.exists():
        return False
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _progress(folder: Path) -> str:
    """``update 120`` from the last metric; the file's end only, as it is read often."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().splitlines()
        return f"update {json.loads(lines[-1])['step']}"
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return "update 0"


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"its last words: {lines[-1][:300]}" if lines else f"it said nothing ({log})"
