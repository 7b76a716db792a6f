"""A small run, commands in processes of their own, and what a run must be in the end."""

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig

PATIENCE = 300.0  # seconds after which a command counts as hung
TIMES = ("seconds", "tokens_per_second")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: by that signal) and what it printed."""

    code: int
    out: str
    err: str

    @property
    def fault(self) -> str:
        """What no command may do, whatever it is given; empty: nothing of it."""
        if "Traceback" in self.err + self.out:
            return f"a traceback: {self.err[-800:]}"
        if self.code < 0:
            return f"it was ended by signal {-self.code} ({self.err[-300:]})"
        if self.code not in (0, 1, 2, 130):
            return f"exit code {self.code}"
        if self.code and not self.err.strip():
            return f"exit code {self.code} and not a word"
        return ""


class Command:
    """``cosformer`` with these words, begun in a process of its own: forked, so that a start costs nothing."""

    def __init__(self, words: Sequence[str], folder: Path, before: Callable[[], object] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.words = list(map(str, words))
        number = time.monotonic_ns()
        self.files = [folder / f"{number}.{name}" for name in ("out", "err")]
        self.pid = os.fork()
        if self.pid == 0:
            _be_the_command(self.words, self.files, before)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> Ended:
        """Wait for it."""
        waited, before = 0.0, time.monotonic()
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            now = time.monotonic()
            waited, before = waited + min(now - before, 0.1), now  # while this process is stopped nobody waits
            if waited > PATIENCE:
                self.kill()
                os.waitpid(self.pid, 0)
                return Ended(-9, "", f"it hung for {PATIENCE:.0f} seconds")
            time.sleep(0.002)
        out, err = (path.read_text(errors="replace") if path.exists() else "" for path in self.files)
        return Ended(os.waitstatus_to_exitcode(status), out, err)


def _be_the_command(words: list[str], files: list[Path], before: Callable[[], object] | None) -> None:
    code = 70
    try:
        for number, path in enumerate(files, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(files[0].parent)  # an odd word may be the name of a file to write
        sys.argv[:] = ["cosformer", *words]
        from cosformer.cli import main

        if before is not None:
            before()
        code = main(words)
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Lab:
    """A folder to work in, with the uninterrupted run that all others are compared with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        os.environ["COSFORMER_HOME"] = str(folder / "home")
        self.whole = self.begin(folder / "whole")
        started = time.monotonic()
        ended = self.run("resume", self.whole, "--quiet")
        assert ended.code == 0, ended.err
        self.duration = time.monotonic() - started
        self.expected = state_of(self.whole)
        # one that was killed between its second checkpoint and the third
        self.cut = folder / "cut"
        begun = self.start("resume", self.begin(self.cut), "--quiet", before=kill_after_update(10))
        assert begun.end().code == -signal.SIGKILL
        assert [path.name for path in (self.cut / "checkpoints").iterdir()].count("checkpoint-8") == 1

    def begin(self, run: Path) -> Path:
        """A folder with nothing but an experiment."""
        run.mkdir(parents=True)
        (run / "experiment.json").write_text(EXPERIMENT.to_json())
        return run

    def copy(self, run: Path, name: str) -> Path:
        place = self.folder / "cases" / name
        shutil.rmtree(place, ignore_errors=True)
        return Path(shutil.copytree(run, place / "run"))

    def start(self, *words: Any, before: Callable[[], object] | None = None) -> Command:
        return Command([str(word) for word in words], self.logs, before)

    def run(self, *words: Any, before: Callable[[], object] | None = None) -> Ended:
        return self.start(*words, before=before).end()

    def wrong_after_resume(self, run: Path, *, said: bool = False) -> str:
        """Resume ``run`` and say what differs from the uninterrupted run; ``said``: a word about damage is expected."""
        ended = self.run("resume", run, "--quiet")
        if ended.fault or ended.code:
            return ended.fault or f"the resume failed: {ended.err[-500:]}"
        differs = [name for name, value in state_of(run).items() if value != self.expected[name]]
        if differs:
            return f"{', '.join(differs)} differ"
        shown = self.run("runs", "--json", run)
        if not said and (json.loads(shown.out or "{}").get("altered") or shown.err):
            return f"a healthy run is marked: {shown.err}"
        return shown.fault


def state_of(run: Path) -> dict[str, Any]:
    """Result, metrics and weights of a run, times apart; what cannot be read is None."""
    result, lines = (_lines(run / name, jsonl=name == "metrics.jsonl") for name in ("result.json", "metrics.jsonl"))
    found: dict[str, Any] = {name: result and result[0].get(name) for name in ("scores", "steps", "tokens", "learned")}
    found["metrics"] = lines and [{k: v for k, v in line.items() if k not in TIMES} for line in lines]
    for file in ("best/model.safetensors", "checkpoints/checkpoint-12/model.safetensors"):
        path = run / file
        found[file] = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
    return found


def _lines(path: Path, *, jsonl: bool) -> list[dict[str, Any]] | None:
    """The objects in a file; None where one of them cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        found = [json.loads(line) for line in (text.splitlines() if jsonl else [text])]
    except (OSError, ValueError):
        return None
    return found if all(isinstance(one, dict) for one in found) else None


def kill_after_update(step: int) -> Callable[[], None]:
    """In the command's process: it dies at the end of this update."""

    def prepare() -> None:
        from cosformer.train.callbacks import StopOnSignal

        plain = StopOnSignal.on_step_end

        def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if state.global_step == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(self, args, state, control, **kwargs)

        StopOnSignal.on_step_end = on_step_end

    return prepare


def limit_files(size: int) -> Callable[[], None]:
    """In the command's process: no file may grow past ``size`` bytes."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


PLAIN = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0, "activation_dropout": 0.0}
EXPERIMENT = Experiment(
    "torture",
    "lm",
    DataConfig("python", {"max_bytes": 300_000}, length=64, eval_rows=16),
    ModelConfig(
        "adaptive_lm",
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.1,
        fields=dict(PLAIN),
    ),
    TrainConfig(
        steps=12, batch=4, lr=3e-3, warmup=3, eval_every=4, save_every=4, log_every=2, tracker="none", threads=1
    ),
)
