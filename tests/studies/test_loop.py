"""The loop over missing runs: trains what is missing, uses what is there and continues where it stopped."""

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.runs import Run, read_runs
from studies.cosformer2022.cells import Cell
from studies.cosformer2022.loop import estimate, minutes, train
from studies.cosformer2022.state import collect, state

# a stand-in for `cosformer train` that writes made-up runs in no time
FAKE_TRAIN = """
import json, pathlib, signal, sys, time
words = sys.argv[1:]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
option = lambda name: words[words.index(name) + 1]
run = pathlib.Path(words[1] if words[0] == "resume" else option("--run"))
if words[0] == "train":
    experiment = json.loads((run.parent / "recipes.json").read_text())[words[1]]
    experiment["model"]["attention"] = option("--model.attention")
    experiment["train"]["seed"] = int(option("--train.seed"))
    experiment["start"] = option("--start") if "--start" in words else None
    run.mkdir()
    (run / "experiment.json").write_text(json.dumps(experiment))
experiment = json.loads((run / "experiment.json").read_text())
steps = experiment["train"]["steps"]
metrics = run / "metrics.jsonl"
done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
attention = experiment["model"]["attention"]
(run / "run.json").write_text(json.dumps({"status": "running"}))
if attention == "missing_data":
    print("no data here"); sys.exit(2)
for step in range(done + 1, steps + 1):
    time.sleep(0.02)
    with metrics.open("a") as file:
        file.write(json.dumps({"kind": "train", "step": step, "loss": 1 / step}) + "\\n")
    if attention == "identity" and step == 2:
        reason = "the loss is not a number at update 2"
        (run / "run.json").write_text(json.dumps({"status": "failed", "reason": reason, "cpu_seconds": 1.5,
                                                   "machine": {"cpu": "made up"}}))
        sys.exit(1)
    if stopped:
        (run / "run.json").write_text(json.dumps({"status": "stopped"}))
        sys.exit(0)
result = {"score": "loss", "scores": {"test": {"loss": 0.5}},
          "baseline": {"test": {"name": "unigram", "score": 1.0, "error": 0.1}},
          "learned": {"test": True}, "seconds": 2.5, "cpu_seconds": 2.0, "machine": {"cpu": "made up"},
          "command": "cosformer " + " ".join(words)}
(run / "result.json").write_text(json.dumps(result))
(run / "run.json").write_text(json.dumps({"status": "done"}))
"""


def tiny(recipe: str, steps: int) -> Experiment:
    train = TrainConfig(steps=steps, batch=1, lr=0.1)
    return Experiment(recipe, "lm", DataConfig("python"), ModelConfig("tiny"), train)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Call it with recipes (name=steps): their cells train with the stand-in, into the folder it returns."""

    def install(**steps: int) -> Path:
        recipes = {name: tiny(name, count) for name, count in steps.items()}
        script = tmp_path / "train.py"
        script.write_text(FAKE_TRAIN)
        runs = tmp_path / "runs"
        runs.mkdir()
        (runs / "recipes.json").write_text(json.dumps({k: dataclasses.asdict(v) for k, v in recipes.items()}))
        monkeypatch.setattr("studies.cosformer2022.cells.recipe", recipes.__getitem__)
        monkeypatch.setattr("studies.cosformer2022.loop.launcher", lambda processes: [str(script)])
        monkeypatch.setattr("studies.cosformer2022.loop.POLL_SECONDS", 0.01)
        return runs

    return install


def cells(recipe: str, *attentions: str, start: str | None = None) -> list[Cell]:
    return [Cell(recipe, attention, 0, start) for attention in attentions]


def started(said: list[str]) -> list[str]:
    return [text.removeprefix("Start ") for text in said if text.startswith("Start ")]


def work(runs: Path, todo: list[Cell], **options: object) -> tuple[list[Cell], list[str]]:
    said: list[str] = []
    return train(todo, runs, say=said.append, **options), said  # pyright: ignore[reportArgumentType]


def test_it_runs_what_is_missing_and_uses_what_is_there(fake: Callable[..., Path]) -> None:
    runs = fake(small=3)
    left, said = work(runs, cells("small", "softmax", "cosformer"))
    assert not left
    assert said[0] == "Start small-softmax-seed0"
    assert said[1] == "small softmax seed 0: loss 0.5 (unigram 1, learned), 2 s"
    assert started(said) == ["small-softmax-seed0", "small-cosformer-seed0"]
    times = {path: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}
    assert work(runs, cells("small", "softmax", "cosformer")) == ([], [])
    assert times == {path: path.stat().st_mtime_ns for path in runs.glob("*/result.json")}


def test_a_budget_stops_a_run_and_the_next_call_goes_on(fake: Callable[..., Path]) -> None:
    runs = fake(small=100)
    todo = cells("small", "softmax")
    left, said = work(runs, todo, seconds=0.8)
    assert left == todo and said[1] == "The time is over; the same command continues from here."
    assert said[2] == "Stopped small-softmax-seed0"
    done = len((runs / "small-softmax-seed0" / "metrics.jsonl").read_text().splitlines())
    assert 0 < done < 100
    left, said = work(runs, todo)
    assert not left and said[0] == "Resume small-softmax-seed0"
    assert len((runs / "small-softmax-seed0" / "metrics.jsonl").read_text().splitlines()) == 100


def test_an_interrupt_saves_the_runs(fake: Callable[..., Path]) -> None:
    runs = fake(small=500)
    threading.Timer(0.8, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        work(runs, cells("small", "softmax"))
    assert json.loads((runs / "small-softmax-seed0" / "run.json").read_text())["status"] == "stopped"


def test_fine_tuning_waits_for_the_run_it_starts_from(fake: Callable[..., Path]) -> None:
    runs = fake(mlm=3, finetune=3)
    left, said = work(runs, [*cells("finetune", "softmax", start="mlm"), *cells("mlm", "softmax")], jobs=2)
    assert not left
    assert started(said) == ["mlm-softmax-seed0", "finetune-softmax-seed0"]
    experiment = json.loads((runs / "finetune-softmax-seed0" / "experiment.json").read_text())
    assert experiment["start"] == str(runs / "mlm-softmax-seed0")
    assert work(runs, cells("finetune", "relu", start="mlm"))[0] == cells("finetune", "relu", start="mlm")


def test_a_run_that_diverged_is_a_result_and_not_run_again(fake: Callable[..., Path]) -> None:
    runs = fake(small=5)
    left, said = work(runs, cells("small", "identity"))
    assert not left and said[1] == "small identity seed 0: the loss is not a number at update 2"
    assert work(runs, cells("small", "identity")) == ([], [])
    (line,), problems = collect(cells("small", "identity"), runs)
    assert (line.status, line.scores, line.cpu_seconds) == ("diverged", {}, 1.5) and not problems


def test_a_run_that_fails_is_named_with_its_last_words_and_the_others_go_on(fake: Callable[..., Path]) -> None:
    runs = fake(small=3)
    left, said = work(runs, cells("small", "missing_data", "softmax"))
    assert [cell.attention for cell in left] == ["missing_data"]
    assert said[1] == "small-missing_data-seed0: ended early; its last words: no data here"
    assert said[2] == "Start small-softmax-seed0"


def test_another_experiment_in_the_folder_is_left_alone(fake: Callable[..., Path]) -> None:
    runs = fake(small=3)
    work(runs, cells("small", "softmax"))
    path = runs / "small-softmax-seed0" / "experiment.json"
    values = json.loads(path.read_text())
    values["train"]["lr"] = 0.7
    path.write_text(json.dumps(values))
    left, said = work(runs, cells("small", "softmax"))
    assert len(left) == 1 and len(said) == 1
    assert "holds another experiment (train.lr 0.7, not 0.1)" in said[0]


@pytest.mark.parametrize(("file", "words"), [("experiment.json", "cannot be read"), ("result.json", "cannot be read")])
def test_a_broken_run_is_named_and_skipped(fake: Callable[..., Path], file: str, words: str) -> None:
    runs = fake(small=3)
    work(runs, cells("small", "softmax"))
    (runs / "small-softmax-seed0" / file).write_text("{")
    left, said = work(runs, cells("small", "softmax", "relu"))
    assert [cell.attention for cell in left] == ["softmax"]
    assert words in said[0] and file in said[0] and "remove" in said[0]


def test_a_run_without_its_result_is_named_and_finished(fake: Callable[..., Path]) -> None:
    runs = fake(small=3)
    work(runs, cells("small", "softmax"))
    (runs / "small-softmax-seed0" / "result.json").unlink()
    assert collect(cells("small", "softmax"), runs) == ([], ["small-softmax-seed0 is not done"])
    left, said = work(runs, cells("small", "softmax"))
    assert not left and said[0] == "Resume small-softmax-seed0"


def test_a_folder_that_does_not_say_what_it_holds_is_named(fake: Callable[..., Path]) -> None:
    runs = fake(small=3)
    work(runs, cells("small", "softmax"))
    (runs / "small-of-mine").mkdir()
    (runs / "small-of-mine" / "experiment.json").write_text('{"recipe": "small", ')
    (runs / "small-empty").mkdir()
    lines, (problem,) = collect(cells("small", "softmax"), runs)
    assert len(lines) == 1 and "small-of-mine" in problem and "cannot be read" in problem


def test_a_moved_folder_of_runs_counts(fake: Callable[..., Path], tmp_path: Path) -> None:
    runs = fake(mlm=3, finetune=3)
    todo = [*cells("mlm", "softmax"), *cells("finetune", "softmax", start="mlm")]
    work(runs, todo)
    moved = runs.rename(tmp_path / "elsewhere")
    assert [state(cell, moved)[0] for cell in todo] == ["done", "done"]


def test_a_run_under_another_name_is_used(fake: Callable[..., Path]) -> None:
    runs = fake(mlm=3, finetune=3)
    todo = [*cells("mlm", "softmax"), *cells("finetune", "softmax", start="mlm")]
    work(runs, todo[:1])
    (runs / "mlm-softmax-seed0").rename(runs / "mlm-of-mine")
    (runs / "mlm-broken").mkdir()
    (runs / "mlm-broken" / "experiment.json").write_text("{")
    left, said = work(runs, todo)
    assert not left and started(said) == ["finetune-softmax-seed0"]
    experiment = json.loads((runs / "finetune-softmax-seed0" / "experiment.json").read_text())
    assert experiment["start"] == str(runs / "mlm-of-mine")


def test_a_start_from_another_attention_is_another_experiment(fake: Callable[..., Path]) -> None:
    runs = fake(mlm=3, finetune=3)
    work(runs, [*cells("mlm", "softmax", "relu"), *cells("finetune", "softmax", start="mlm")])
    path = runs / "finetune-softmax-seed0" / "experiment.json"
    path.write_text(path.read_text().replace("mlm-softmax-seed0", "mlm-relu-seed0"))
    kind, why = state(Cell("finetune", "softmax", 0, "mlm"), runs)
    assert kind == "other" and "start" in why


def test_each_run_is_written_down_as_it_ends(fake: Callable[..., Path], tmp_path: Path) -> None:
    runs, journal = fake(small=3), tmp_path / "journal.jsonl"
    work(runs, cells("small", "softmax", "relu"), journal=journal)
    lines, problems = read_runs([journal])
    assert sorted(line.attention for line in lines) == ["relu", "softmax"] and not problems
    assert lines[0].extra["mean_train_loss"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3, abs=1e-5)


def test_the_estimate_comes_from_what_has_run() -> None:
    todo = cells("small", "softmax", "relu", "cosformer") + cells("other", "softmax")
    ran = [Run("small", "lm", name, 0, "done", cpu_seconds=time) for name, time in (("softmax", 3600), ("relu", 1800))]
    text = estimate(todo, ran, 2)
    assert text == (
        "4 runs are missing: about 2.6 hours of one core, 1.3 with 2 at a time; 1 of them are counted with 20 minutes, "
        "as nothing like them has run yet."
    )
    search = [Run("small", "lm", "softmax", 9, "done", cpu_seconds=900, extra={"rate": 0.1})]
    assert estimate(cells("small", "softmax"), search, 1).startswith("1 runs are missing: about 1.0 hours")
    assert estimate([], ran, 2) == "Nothing is missing."


def test_what_has_never_run_is_predicted_and_said_so() -> None:
    predicted = {("small", "relu"): 3600.0}
    (cell,) = cells("small", "relu")
    assert minutes(cell, [], predicted) == "predicted 60 min"
    assert minutes(dataclasses.replace(cell, rate=0.1), [], predicted) == "predicted 15 min", "a search is shorter"
    said = "about 1.0 hours of one core, 1.0 with 1 at a time; 1.0 of these hours are predicted from a few updates."
    assert estimate([cell], [], 1, predicted) == f"1 runs are missing: {said}"
    ran = [Run("small", "lm", "relu", 0, "done", cpu_seconds=120.0)]
    assert minutes(cell, ran, predicted) == "about 2 min"
