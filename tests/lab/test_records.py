"""Runs read back from their folders: what is there is used, what is broken is named and skipped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.lab.records import find_runs, read_run, read_runs

METRICS = [
    {"kind": "train", "step": 50, "loss": 3.0, "lr": 0.1},
    {"kind": "eval", "step": 50, "name": "valid", "scores": {"loss": 2.5, "perplexity": 12.2}},
    {"kind": "train", "step": 100, "loss": 2.0, "lr": 0.2},
    {"kind": "diagnostics", "step": 100, "layers": []},
    {"kind": "eval", "step": 100, "name": "valid", "scores": {"loss": 2.25, "perplexity": 9.5}},
]


def write_run(path: Path, attention: str = "cosformer", seed: int = 0) -> Path:
    path.mkdir(parents=True)
    experiment = Experiment(
        recipe="lm-tiny",
        task="lm",
        data=DataConfig(name="python"),
        model=ModelConfig(preset="lm-tiny", attention=attention),
        train=TrainConfig(steps=100, batch=2, lr=0.1, seed=seed),
    )
    (path / "experiment.json").write_text(experiment.to_json())
    (path / "run.json").write_text(json.dumps({"status": "done", "seconds": 12.5}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in METRICS))
    (path / "result.json").write_text(json.dumps({"scores": {"test": {"loss": 2.125, "perplexity": 8.4}}}))
    return path


def test_a_whole_run(tmp_path: Path) -> None:
    run, problems = read_run(write_run(tmp_path / "a", attention="relu", seed=3))
    assert run is not None and problems == []
    assert (run.name, run.recipe, run.task, run.attention, run.seed, run.status) == (
        "a",
        "lm-tiny",
        "lm",
        "relu",
        3,
        "done",
    )
    assert run.train_curve() == [(50, 3.0), (100, 2.0)]
    assert run.train_curve("lr") == [(50, 0.1), (100, 0.2)]
    assert run.eval_curve("valid") == [(50, 2.5), (100, 2.25)]
    assert run.eval_curve("valid", "perplexity") == [(50, 12.2), (100, 9.5)]
    assert run.eval_curve("test") == []
    assert run.scores == {"test": {"loss": 2.125, "perplexity": 8.4}} and run.evaluation == "test" and run.finished
    assert run.seconds == 12.5 and run.valid_loss == run.eval_curve("valid")


def test_broken_lines_are_named_and_the_others_stay(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    good = (path / "metrics.jsonl").read_text()
    broken = ['{"kind": "train", "st', "[1, 2]", '{"kind": "train", "step": "7"}', '{"kind": "eval", "step": 7}']
    (path / "metrics.jsonl").write_text(good + "\n".join(broken) + "\n")
    run, problems = read_run(path)
    assert run is not None and len(run.metrics) == len(METRICS)
    assert [problem.split(" cannot")[0] for problem in problems] == [
        f"{path / 'metrics.jsonl'} line {number}" for number in (6, 7, 8, 9)
    ]


def test_bytes_that_are_no_text_spoil_one_line(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\x00\n")
    run, problems = read_run(path)
    assert run is not None and len(run.metrics) == len(METRICS) and "line 6" in problems[0]


def test_a_step_logged_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "step": 50, "loss": 2.875}) + "\n")
    run, problems = read_run(path)
    assert run is not None and run.train_curve() == [(50, 2.875), (100, 2.0)] and not problems


def test_a_loss_that_is_not_a_number_is_not_on_the_curve(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 150, "loss": NaN}\n')
    run, _ = read_run(path)
    assert run is not None and run.train_curve() == [(50, 3.0), (100, 2.0)] and len(run.metrics) == len(METRICS) + 1


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "result.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "a")
    (path / name).unlink()
    run, problems = read_run(path)
    assert run is not None and problems == [f"{path / name} is missing"]


@pytest.mark.parametrize("name", ["run.json", "result.json"])
@pytest.mark.parametrize("text", ["{", "[]", "\x00"])
def test_a_corrupt_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    path = write_run(tmp_path / "a")
    (path / name).write_text(text)
    run, problems = read_run(path)
    assert run is not None and len(problems) == 1 and str(path / name) in problems[0]
    assert run.train_curve() == [(50, 3.0), (100, 2.0)]


def test_no_result_is_no_problem_while_a_run_goes_on(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "run.json").write_text(json.dumps({"status": "running"}))
    (path / "result.json").unlink()
    run, problems = read_run(path)
    assert run is not None and not run.finished and run.status == "running" and problems == []


def test_folders_that_are_no_runs_are_named(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    torn = write_run(tmp_path / "torn")
    (torn / "experiment.json").write_text("{}")
    runs, problems = read_runs([tmp_path / "none", torn, good])
    assert [run.name for run in runs] == ["good"]
    assert len(problems) == 2 and str(tmp_path / "none") in problems[0] and str(torn) in problems[1]


def test_runs_are_found_in_folders(tmp_path: Path) -> None:
    inner = write_run(tmp_path / "suite" / "b")
    outer = write_run(tmp_path / "a")
    assert find_runs(tmp_path) == [outer, inner] and find_runs(outer) == [outer] and find_runs(tmp_path / "no") == []
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "c").symlink_to(outer)
    assert find_runs(tmp_path / "links") == [tmp_path / "links" / "c"]


def test_reading_runs_loads_no_torch() -> None:
    code = "import sys, cosformer.lab.records; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
