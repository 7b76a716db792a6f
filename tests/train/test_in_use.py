"""A run's folder belongs to one process at a time, and a resume begins at its checkpoint's update."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time

import pytest
from transformers import Trainer

from cosformer.locks import InUse, is_locked, locked
from cosformer.train import TrainingFailed, resume, train

HOLD = """
import os, sys, time
from pathlib import Path
from cosformer.locks import locked
with locked(Path(sys.argv[1]), "it"):
    if os.fork() == 0:  # as a loader of rows is: it may outlive us a little
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of tmp_path/run."""
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", HOLD, tmp_path / "run" / ".lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def test_a_run_in_use_is_refused_and_its_process_named(small, tmp_path, holder) -> None:
    run = tmp_path / "run"
    said = f"is in use by process {holder.pid} on {platform.node()}"
    with pytest.raises(InUse, match=said):
        train(small(steps=1), run, quiet=True)
    assert not (run / "experiment.json").exists()
    (run / "experiment.json").write_text(small(steps=1).to_json())
    for steps in (None, 9):
        with pytest.raises(InUse, match=said):
            resume(run, steps=steps, quiet=True)
    assert json.loads((run / "experiment.json").read_text())["train"]["steps"] == 1, "it was lengthened"
    holder.kill()
    holder.wait()
    assert resume(run, quiet=True)["steps"] == 1, "the lock outlived its process"
    assert not is_locked(run / ".lock")


def test_two_resumes_at_once_give_one_result(small, tmp_path, metric_lines) -> None:
    experiment = small(steps=20, save_every=4, keep=1)
    expected = train(experiment, tmp_path / "whole", quiet=True)
    run = tmp_path / "run"
    run.mkdir()
    (run / "experiment.json").write_text(experiment.to_json())
    command = [sys.executable, "-m", "cosformer", "resume", run, "--quiet"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    codes = sorted(process.returncode for process in both)
    # the later one is refused, or found the result
    assert (codes == [0, 2] and "in use by process" in "".join(errors)) or codes == [0, 0], errors
    assert json.loads((run / "result.json").read_text())["scores"] == expected["scores"]
    assert metric_lines(run) == metric_lines(tmp_path / "whole")
    for file in ("checkpoints/checkpoint-20/model.safetensors", "best/model.safetensors"):
        assert (run / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


@pytest.mark.parametrize("lost", ["trainer_state.json", "optimizer.pt", "rng_state.pth"])
def test_a_checkpoint_that_goes_away_while_it_is_loaded_stops_the_run(small, tmp_path, monkeypatch, lost) -> None:
    run = tmp_path / "run"
    train(small(steps=8, save_every=4), run, quiet=True)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "checkpoint-8")
    begin = Trainer._inner_training_loop

    def prune_then_train(self, *args, **kwargs):
        (run / "checkpoints" / "checkpoint-4" / lost).unlink()
        return begin(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "_inner_training_loop", prune_then_train)
    with pytest.raises(TrainingFailed, match="checkpoint-4"):
        resume(run, quiet=True)
    assert not (run / "result.json").exists()


def test_a_file_system_without_locks_is_said_and_its_living_holder_refused(tmp_path, monkeypatch, capsys) -> None:
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with locked(tmp_path / ".lock", "it"):
        assert "no locks" in capsys.readouterr().err
        with pytest.raises(InUse, match=f"process {os.getpid()}"), locked(tmp_path / ".lock", "it"):
            pass
    with locked(tmp_path / ".lock", "it"):
        pass


def test_waiting_for_a_lock_takes_it_when_its_process_ends(tmp_path, holder, capsys) -> None:
    began = time.monotonic()
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {holder.pid}"])
    with locked(tmp_path / "run" / ".lock", "it", wait=True):
        assert time.monotonic() - began > 0.4
    assert f"process {holder.pid} on {platform.node()}: waiting" in capsys.readouterr().err
