"""A run that was killed, stopped or starved goes on as if nothing had happened."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cosformer.experiment import load_experiment
from cosformer.train import checkpoints as whole_or_not
from cosformer.train import evaluate_run, resume, train
from cosformer.train.metrics import METRICS_FILE, Metrics, read_lines


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wait_for_update(run: Path, step: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (run / METRICS_FILE).exists() and any(m["step"] >= step for m in read_lines(run / METRICS_FILE)):
            return
        time.sleep(0.005)
    raise AssertionError(f"no update {step}: {process.communicate()[1]}")


def test_killed_at_a_random_update_and_resumed_equals_the_uninterrupted_run(
    small, start, tmp_path, metric_lines
) -> None:
    # checkpoints between log lines: what had been added up must survive, too
    experiment = small(steps=80, save_every=7, eval_every=10, log_every=3)
    expected = train(experiment, tmp_path / "whole", quiet=True)
    at = random.SystemRandom().randint(8, 60)
    process = start(experiment, tmp_path / "cut")
    wait_for_update(tmp_path / "cut", at, process)
    process.kill()
    process.wait()
    assert not (tmp_path / "cut" / "result.json").exists(), f"it was over before it was killed at {at}"
    found = resume(tmp_path / "cut", quiet=True)
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole"), f"killed at {at}"
    assert found["scores"] == expected["scores"] and found["tokens"] == expected["tokens"]
    for file in ("checkpoints/checkpoint-80/model.safetensors", "best/model.safetensors"):
        assert digest(tmp_path / "cut" / file) == digest(tmp_path / "whole" / file), f"{file}, killed at {at}"


def flip(path: Path, place: int, bit: int = 0) -> None:
    """One bit of one byte the other way round: what a failing disk does."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def flip_middle(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (Path.unlink, "complete.json"),
        (Path.unlink, "model.safetensors"),
        (halve, "optimizer.pt"),
        *((flip_middle, file) for file in ("model.safetensors", "rng_state.pth", "optimizer.pt", "counters.json")),
    ],
)
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(
    small, tmp_path, metric_lines, capsys, damage, file
) -> None:
    run = tmp_path / "run"
    expected = train(small(steps=12, save_every=4), run, quiet=True)
    before = metric_lines(run)
    newest = run / "checkpoints" / "checkpoint-12"
    weights = digest(newest / "model.safetensors")
    (run / "result.json").unlink()
    damage(newest / file)
    flipped = damage is flip_middle  # which only a look at the contents shows
    names = [p.name for p in whole_or_not.whole(run / "checkpoints")]
    assert names == ["checkpoint-8", "checkpoint-12"][: 1 + flipped] and whole_or_not.damage(newest)
    assert resume(run, quiet=True)["scores"] == expected["scores"]
    said = f"{newest / file} is damaged" if flipped else "checkpoint-12 was cut short"
    assert said in capsys.readouterr().err and metric_lines(run) == before
    assert digest(newest / "model.safetensors") == weights and not whole_or_not.damage(newest)


def readable(path: Path):
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def test_no_flip_of_a_single_byte_goes_unnoticed(small, tmp_path) -> None:
    train(small(steps=4, save_every=4), tmp_path / "run", quiet=True)
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-4"
    # the model card is for people, who may edit it
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != "README.md")
    chance, manifest = random.Random(0), readable(checkpoint / "complete.json")
    assert not whole_or_not.damage(checkpoint)
    for number in range(200):
        path = files[number % len(files)]
        place, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
        flip(path, place, bit)
        # in the manifest a space may become another kind of space: the same contents
        same = path.name == "complete.json" and readable(path) == manifest
        assert same or whole_or_not.damage(checkpoint), f"{path.name}, byte {place}, bit {bit}"
        flip(path, place, bit)


def test_damaged_best_weights_are_named_and_not_scored(small, tmp_path) -> None:
    run = tmp_path / "run"
    train(small(steps=4, save_every=4), run, quiet=True)
    flip(run / "best" / "model.safetensors", -1)
    with pytest.raises(ValueError, match=r"best/model\.safetensors is damaged"):
        evaluate_run(run, which="best")
    assert evaluate_run(run, which="last")


def test_a_manifest_with_sizes_alone_still_resumes(small, tmp_path) -> None:
    """As versions before wrote it."""
    run = tmp_path / "run"
    expected = train(small(steps=8, save_every=4), run, quiet=True)
    newest = run / "checkpoints" / "checkpoint-8"
    entries = json.loads((newest / "complete.json").read_text())
    (newest / "complete.json").write_text(json.dumps({name: entry["size"] for name, entry in entries.items()}))
    (run / "result.json").unlink()
    assert resume(run, quiet=True)["scores"] == expected["scores"]
    assert whole_or_not.newest(run / "checkpoints") == (newest, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_cleanly(small, start, tmp_path, number) -> None:
    process = start(small(steps=300, save_every=1000, eval_every=20), tmp_path / "run")
    wait_for_update(tmp_path / "run", 10, process)
    process.send_signal(number)
    assert process.wait(60) == 0, process.communicate()[1]
    status = json.loads((tmp_path / "run" / "run.json").read_text())
    assert status["status"] == "stopped" and signal.Signals(number).name in status["reason"]
    saved = whole_or_not.whole(tmp_path / "run" / "checkpoints")
    assert [whole_or_not.step_of(p) for p in saved] == [status["steps_done"]]
    assert 10 <= status["steps_done"] < 300


BOTH = {"short_convolution": 4, "output_gate": True}


@pytest.mark.parametrize(
    "model", [{}, BOTH, {"attention": "multiscale", **BOTH}], ids=["plain", "convolution", "convolution and decays"]
)
def test_stopped_and_resumed_equals_the_uninterrupted_run(small, tmp_path, metric_lines, monkeypatch, model) -> None:
    """The same, in one process: the signal arrives at update 7, between two log lines."""
    from cosformer.train.callbacks import StopOnSignal

    experiment = small(steps=12, save_every=100, log_every=4, model=model)
    train(experiment, tmp_path / "whole", quiet=True)
    anyone = StopOnSignal._any_process_signalled

    def at_seven(self, args) -> bool:
        self.updates = getattr(self, "updates", 0) + 1
        if self.updates == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return anyone(self, args)

    monkeypatch.setattr(StopOnSignal, "_any_process_signalled", at_seven)
    stopped = train(experiment, tmp_path / "cut", quiet=True)
    assert stopped["status"] == "stopped" and stopped["steps_done"] == 7
    monkeypatch.undo()
    resume(tmp_path / "cut", quiet=True)
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")
    file = "best/model.safetensors"
    assert digest(tmp_path / "cut" / file) == digest(tmp_path / "whole" / file)


# no file may grow past this: the first checkpoint is written before, the second meets the limit
FILL_UP = """
import resource
import cosformer.train.engine as engine
save = engine.Engine._save_checkpoint
def fill_up(self, *args):
    if self.state.global_step == 8:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    save(self, *args)
engine.Engine._save_checkpoint = fill_up
"""


def test_a_full_disk_stops_with_a_message_and_keeps_the_last_good_checkpoint(
    small, start, tmp_path, metric_lines
) -> None:
    experiment, run = small(steps=12, save_every=4, eval_every=100, model={"hidden_size": 64}), tmp_path / "run"
    train(experiment, tmp_path / "whole", quiet=True)
    process = start(experiment, run, FILL_UP)
    message = process.communicate()[1].strip().splitlines()[-1]
    assert process.returncode != 0
    assert "TrainingFailed: checkpoint-8 could not be written" in message, message
    assert "the last good checkpoint is checkpoint-4" in message and "cosformer resume" in message
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["checkpoint-4"]
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    resume(run, quiet=True)
    assert metric_lines(run) == metric_lines(tmp_path / "whole")


def test_a_finished_run_is_not_trained_again_and_not_overwritten(small, tmp_path) -> None:
    experiment = small(steps=2)
    result = train(experiment, tmp_path / "run", quiet=True)
    changed = (tmp_path / "run" / "best" / "model.safetensors").stat().st_mtime_ns
    assert resume(tmp_path / "run", quiet=True) == json.loads(json.dumps(result))
    assert (tmp_path / "run" / "best" / "model.safetensors").stat().st_mtime_ns == changed
    with pytest.raises(FileExistsError, match="cosformer resume"):
        train(experiment, tmp_path / "run", quiet=True)
    assert load_experiment(tmp_path / "run") == experiment


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path) -> None:
    metrics = Metrics(tmp_path)
    for step in (2, 4, 6):
        metrics.add(kind="train", step=step, loss=0.1 * step)
    with open(tmp_path / METRICS_FILE, "a") as file:
        file.write('{"kind": "train", "step": 8, "lo')
    metrics.cut(4)
    assert [m["step"] for m in read_lines(tmp_path / METRICS_FILE)] == [2, 4]
    assert "lo\n" not in (tmp_path / METRICS_FILE).read_text()


def test_only_the_newest_checkpoints_and_the_best_weights_stay(small, tmp_path) -> None:
    train(small(steps=12, save_every=2, keep=2), tmp_path / "run", quiet=True)
    names = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["checkpoint-10", "checkpoint-12"]
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file()
    assert not (tmp_path / "run" / "best.new").exists()


def test_resuming_a_folder_without_a_checkpoint_starts_again(small, tmp_path, metric_lines) -> None:
    experiment = small(steps=6, save_every=3)
    train(experiment, tmp_path / "whole", quiet=True)
    run = tmp_path / "run"
    shutil.copytree(tmp_path / "whole", run)
    shutil.rmtree(run / "checkpoints")
    (run / "result.json").unlink()
    resume(run, quiet=True)
    assert metric_lines(run) == metric_lines(tmp_path / "whole")
    with pytest.raises(FileNotFoundError, match=r"experiment\.json"):
        resume(tmp_path / "nowhere")


def test_a_finished_run_goes_on_for_longer(small, tmp_path, capsys) -> None:
    run = tmp_path / "run"
    first = train(small(steps=6, save_every=3), run, quiet=True)
    with pytest.raises(ValueError, match="--steps 6 is no more than that"):
        resume(run, steps=6, quiet=True)
    longer = resume(run, steps=10, quiet=True)
    assert longer["steps"] == 10 and load_experiment(run).train.steps == 10
    assert "on from update 6 to 10" in capsys.readouterr().err
    assert json.loads((run / "result-6.json").read_text())["scores"] == first["scores"] != longer["scores"]
    assert resume(run, quiet=True) == json.loads((run / "result.json").read_text())


@pytest.mark.slow
def test_messages_of_other_libraries_do_not_leak(small, tmp_path) -> None:
    """A run that is trained, resumed, scored and used says what we say, and nothing of transformers' own."""
    run = tmp_path / "run"
    train(small(steps=8, save_every=4), run, quiet=True)
    (run / "result.json").unlink()
    for words in (
        ["resume", "--quiet", str(run)],
        ["eval", str(run)],
        ["generate", str(run), "--prompt", "a", "--seed", "0"],
    ):
        done = subprocess.run([sys.executable, "-m", "cosformer", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
