"""What happens to a run's folder: kills, flipped bytes, two commands at once, a full disk."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torture.lab import Lab, limit_files, state_of

# for people, or for another program; no command of ours reads them
NOT_READ = ("README.md", ".lock")


def kills(lab: Lab, chance: random.Random, count: int) -> Iterator[str]:
    """kill -9: half at random moments, half just after a file of the run was opened, renamed or removed."""
    events = _count_events(lab)
    for number in range(count):
        run = lab.begin(lab.folder / "cases" / f"kill-{number}")
        if number % 2:
            at = chance.randrange(events)
            died = lab.run("resume", run, "--quiet", before=_die_at_event(at, chance.uniform(0, 0.004), run))
            where = f"at file event {at}"
        else:
            at = chance.uniform(0, lab.duration)
            command = lab.start("resume", run, "--quiet")
            time.sleep(at)
            command.kill()
            died = command.end()
            where = f"after {at:.2f} s"
        wrong = "" if died.code < 0 or died.code == 0 else f"exit code {died.code}: {died.err[-300:]}"
        wrong = wrong or lab.wrong_after_resume(run)
        yield wrong and f"killed {where}: {wrong}"
        shutil.rmtree(run)


def _count_events(lab: Lab) -> int:
    """Files of a run opened, renamed and removed in its life."""
    run, log = lab.begin(lab.folder / "counted"), lab.folder / "events"
    ended = lab.run("resume", run, "--quiet", before=_on_events(run, lambda number: _append(log)))
    assert ended.code == 0, ended.err
    return log.stat().st_size


def _append(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b".")
    os.close(file)


def _die_at_event(at: int, later: float, run: Path) -> Callable[[], None]:
    def die(number: int) -> None:
        if number == at:
            signal.setitimer(signal.ITIMER_REAL, max(later, 1e-6))  # nobody handles SIGALRM: it ends the process

    return _on_events(run, die)


def _on_events(run: Path, act: Callable[[int], None]) -> Callable[[], None]:
    def prepare() -> None:
        seen, acting = [0], [False]

        def hook(event: str, args: tuple) -> None:
            if event in ("open", "os.rename", "os.remove", "os.mkdir") and args and not acting[0]:
                if not str(args[0]).startswith(str(run)):
                    return
                acting[0] = True
                act(seen[0])
                seen[0] += 1
                acting[0] = False

        sys.addaudithook(hook)

    return prepare


def flips(lab: Lab, chance: random.Random, count: int) -> Iterator[str]:
    """One flipped bit in one file of a killed or finished run, which is then listed, scored, used, resumed."""
    for number in range(count):
        finished = number % 2 == 0
        run = lab.copy(lab.whole if finished else lab.cut, f"flip-{number}")
        files = sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size)
        path = files[chance.randrange(len(files))]
        place, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
        content = bytearray(path.read_bytes())
        content[place] ^= 1 << bit
        right = _said_of(lab, run)
        path.write_bytes(content)
        wrong = _after_flip(lab, run, path, right)
        yield (
            wrong
            and f"{path.relative_to(run)}, byte {place}, bit {bit}, {'finished' if finished else 'killed'} run: {wrong}"
        )
        shutil.rmtree(run.parent)


_SAID: dict[str, tuple[str, ...]] = {}


def _commands(run: Path) -> list[list[str]]:
    return [
        ["runs", "--json", str(run)],
        ["eval", "--json", "--weights", "last", str(run)],
        ["generate", str(run), "--prompt", "def", "--greedy", "--max-new-tokens", "8"],
    ]


def _said_of(lab: Lab, run: Path) -> tuple[str, ...]:
    """What the commands print of the undamaged run, without its path."""
    kind = "finished" if (run / "result.json").exists() else "killed"
    if kind not in _SAID:
        _SAID[kind] = tuple(lab.run(*words).out.replace(str(run), "") for words in _commands(run))
    return _SAID[kind]


def _after_flip(lab: Lab, run: Path, path: Path, right: tuple[str, ...]) -> str:
    """What went wrong: a traceback, or another answer without a word; a named file is as it should be."""
    noticed = False
    report = ["report", str(run), "-o", str(run.parent / "page.html")]
    for words, before in zip([*_commands(run), report], [*right, None], strict=True):
        ended = lab.run(*words)
        if ended.fault:
            return f"{words[0]}: {ended.fault}"
        told = bool(ended.err.strip())
        noticed = noticed or told
        if before is not None and ended.out.replace(str(run), "") != before and not told:
            return f"{words[0]} says something else and not a word of it: {ended.out[-300:]}"
    ended = lab.run("resume", run, "--quiet")
    if ended.fault:
        return f"resume: {ended.fault}"
    told = bool(ended.err.strip())
    if ended.code:  # refused: it must name what it was about
        return "" if told else "resume is refused and not a word of it"
    if path.name in NOT_READ or path.suffix == ".bin":
        return ""
    state = state_of(run)
    differs = [name for name, value in state.items() if value != lab.expected[name]]
    return f"resume gives other {', '.join(differs)}, and not a word of it" if differs and not (told or noticed) else ""


PAIRED = ("resume", "resume", "resume", "train", "eval", "runs", "report", "generate", "diff", "clean")


def pairs(lab: Lab, chance: random.Random, count: int) -> Iterator[str]:
    """Two commands on one folder at once; afterwards the run must be what it would have been."""
    for number in range(count):
        run = lab.copy(lab.cut, f"pair-{number}")
        names = [chance.choice(PAIRED[:4]), chance.choice(PAIRED)]
        first = lab.start(*_pair_words(names[0], run, lab))
        time.sleep(chance.choice((0, 0, chance.uniform(0, lab.duration))))
        second = lab.start(*_pair_words(names[1], run, lab))
        ended = [first.end(), second.end()]
        wrong = next((one.fault for one in ended if one.fault), "")
        for name, one in zip(names, ended, strict=True):
            if one.code and not wrong and not any(x in one.err for x in ("in use by process", "holds a run already")):
                wrong = f"{name} failed with {one.err[-300:]}"
        wrong = wrong or lab.wrong_after_resume(run)
        yield wrong and f"{' and '.join(names)}: {wrong}"
        shutil.rmtree(run.parent)


def _pair_words(name: str, run: Path, lab: Lab) -> list[str]:
    return {
        "resume": ["resume", str(run), "--quiet"],
        "train": ["train", "lm-stdlib-small", "--run", str(run), "--quiet", "--train.steps", "2"],
        "eval": ["eval", str(run)],
        "runs": ["runs", str(run.parent)],
        "report": ["report", str(run), "-o", str(run.parent / "page.html")],
        "generate": ["generate", str(run), "--prompt", "def", "--max-new-tokens", "8"],
        "diff": ["runs", "diff", str(run), str(lab.whole)],
        "clean": ["data", "clean"],
    }[name]


def full_disk(lab: Lab, chance: random.Random, count: int) -> Iterator[str]:
    """No space left during a run (a file size limit or, for root, a small file system); then space again."""
    largest = max(path.stat().st_size for path in lab.whole.rglob("*") if path.is_file())
    total = sum(path.stat().st_size for path in lab.whole.rglob("*") if path.is_file())
    for number in range(count):
        place = lab.folder / "cases" / f"full-{number}"
        place.mkdir(parents=True)
        size = chance.randrange(total // 4, total)
        mounted = number % 2 == 0 and _mount(place, size)
        run = lab.begin(place / "run")
        if mounted:
            ended, what = lab.run("resume", run, "--quiet"), f"a disk of {size:,} bytes"
        else:
            limit = chance.randrange(4096, largest)
            ended = lab.run("resume", run, "--quiet", before=limit_files(limit))
            what = f"files of at most {limit:,} bytes"
        wrong = ended.fault
        if not wrong and ended.code == 0 and not mounted:
            wrong = "it ended as if nothing had happened"
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=100m", str(place)], check=True)
        wrong = wrong or lab.wrong_after_resume(run)
        yield wrong and f"{what}: {wrong}"
        if mounted:
            subprocess.run(["umount", str(place)], check=True)
        shutil.rmtree(place)


def _mount(place: Path, size: int) -> bool:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False
    )
    return done.returncode == 0
