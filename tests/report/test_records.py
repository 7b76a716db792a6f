"""Records: what is there is used, what is broken is named and skipped."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from cosformer.report.measurements import Measurement, Results, read_results
from cosformer.runs import (
    Run,
    SeedScores,
    find_runs,
    load,
    read_run,
    read_runs,
    run_of_line,
    seed_scores,
    thinned,
    write_runs,
)
from report import made_up

METRICS = [
    {"kind": "train", "step": 50, "loss": 3.0, "lr": 0.1},
    {"kind": "eval", "step": 50, "name": "valid", "scores": {"loss": 2.5, "perplexity": 12.2}},
    {"kind": "train", "step": 100, "loss": 2.0, "lr": 0.2},
    {"kind": "diagnostics", "step": 100, "layers": []},
    {"kind": "eval", "step": 100, "name": "valid", "scores": {"loss": 2.25, "perplexity": 9.5}},
]


def write_run(path: Path, attention: str = "cosformer", seed: int = 0) -> Path:
    result = {"scores": {"test": {"loss": 2.125, "perplexity": 8.4}}}
    return made_up.write_run(path, made_up.experiment("lm-tiny", attention, seed), METRICS, result, seconds=12.5)


def test_a_whole_run(tmp_path: Path) -> None:
    run, problems = read_run(write_run(tmp_path / "a", attention="relu", seed=3))
    assert run is not None and problems == []
    assert (run.name, run.key, run.task, run.status) == ("a", ("lm-tiny", "relu", 3), "lm", "done")
    assert run.train_curve() == [(50, 3.0), (100, 2.0)]
    assert run.train_curve("lr") == [(50, 0.1), (100, 0.2)]
    assert run.eval_curve("valid") == [(50, 2.5), (100, 2.25)]
    assert run.eval_curve("valid", "perplexity") == [(50, 12.2), (100, 9.5)]
    assert run.eval_curve("test") == []
    assert run.scores == {"test": {"loss": 2.125, "perplexity": 8.4}} and run.evaluation == "test" and run.finished
    assert run.seconds == 12.5 and run.valid_loss == run.eval_curve("valid")


def read_with_metrics(path: Path, *more: bytes) -> tuple[Run, list[str]]:
    """The run of :func:`write_run` with more lines of metrics."""
    with (write_run(path) / "metrics.jsonl").open("ab") as file:
        file.writelines(line + b"\n" for line in more)
    run, problems = read_run(path)
    assert run is not None
    return run, problems


def test_broken_lines_are_named_and_the_others_stay(tmp_path: Path) -> None:
    broken = [b'{"kind": "train", "st', b"[1, 2]", b'{"kind": "train", "step": "7"}', b'{"kind": "eval", "step": 7}']
    broken.append(b"\xff\xfe\x00")  # no text
    run, problems = read_with_metrics(tmp_path / "a", *broken)
    assert len(run.metrics) == len(METRICS)
    places = {problem.split(" cannot")[0] for problem in problems}
    assert places == {f"{tmp_path / 'a' / 'metrics.jsonl'} line {number}" for number in (6, 7, 8, 9, 10)}
    assert len(problems) == 5


def test_a_step_logged_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    run, problems = read_with_metrics(tmp_path / "a", b'{"kind": "train", "step": 50, "loss": 2.875}')
    assert run.train_curve() == [(50, 2.875), (100, 2.0)] and not problems


def test_a_loss_that_is_not_a_number_is_not_on_the_curve(tmp_path: Path) -> None:
    run, _ = read_with_metrics(tmp_path / "a", b'{"kind": "train", "step": 150, "loss": NaN}')
    assert run.train_curve() == [(50, 3.0), (100, 2.0)] and len(run.metrics) == len(METRICS) + 1


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "result.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "a")
    (path / name).unlink()
    run, problems = read_run(path)
    assert run is not None and problems == [f"{path / name} is missing"]


def test_a_run_stopped_before_its_first_line_of_metrics_has_nothing_missing(tmp_path: Path) -> None:
    stopped = {"status": "stopped", "reason": "SIGINT at update 1", "steps_done": 1}
    path = made_up.write_run(tmp_path / "a", made_up.experiment("lm-tiny", "cosformer"), [], None, **stopped)
    (path / "metrics.jsonl").unlink()
    run, problems = read_run(path)
    assert run is not None and run.status == "stopped" and problems == []


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


def test_load_takes_folders_and_files_and_warns(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", seed=1)
    write_run(tmp_path / "runs" / "b", seed=2)
    assert [run.seed for run in load(tmp_path / "runs")] == [1, 2]
    for seed in (1, 2):
        line = made_up.run_line("lm", "cosformer", seed, {"loss": 3.0}, 5.0)
        write_runs(tmp_path / "kept.jsonl", [run_of_line(line)], append=True)
    assert [run.seed for run in load(str(tmp_path / "kept.jsonl"))] == [1, 2]
    (tmp_path / "runs" / "b" / "experiment.json").write_text("{")
    with pytest.warns(UserWarning, match=r"b.*cannot be read"):
        assert len(load(tmp_path / "runs")) == 1
    with pytest.raises(FileNotFoundError, match="does not exist; give"):
        load(tmp_path / "nowhere")


def test_reading_runs_loads_no_torch() -> None:
    code = "import sys, cosformer; cosformer.runs.load(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


RUNS = Path(__file__).parents[2] / "studies" / "cosformer2022" / "results" / "runs-v1.jsonl"


def test_the_committed_runs_are_read_and_written_back_as_they_are(tmp_path: Path) -> None:
    runs, problems = read_runs([RUNS])
    assert len(runs) >= 59 and problems == []
    assert all(run.key and run.scores and run.learned and run.train_loss for run in runs if not run.diverged)
    write_runs(tmp_path / "runs.jsonl", reversed(runs))
    kept, written = (
        sorted(json.dumps(json.loads(line), sort_keys=True) for line in path.read_text(encoding="utf-8").splitlines())
        for path in (RUNS, tmp_path / "runs.jsonl")
    )
    assert written == kept


def test_a_folder_and_its_line_are_the_same_record(tmp_path: Path) -> None:
    run, _ = read_run(write_run(tmp_path / "a"))
    assert run is not None
    line = json.loads(json.dumps(run.line())) | {"baseline": {}, "cpu_seconds": 3.5, "machine": {}}
    again = run_of_line(line | {"gate": [0.5], "area": 7.25})
    assert (again.key, again.scores, again.status) == (run.key, run.scores, run.status)
    assert again.train_curve() == run.train_curve() and again.valid_loss == run.valid_loss
    assert again.extra == {"gate": [0.5], "area": 7.25}  # unknown here, kept all the same
    assert again.line()["area"] == 7.25 and again.name == "lm-tiny-cosformer-seed0"


def test_a_damaged_line_of_runs_is_named_and_the_others_stay(tmp_path: Path) -> None:
    good = RUNS.read_text(encoding="utf-8").splitlines()[0]
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(["{", good, '{"recipe": "x"}', "[]", ""]), encoding="utf-8")
    runs, problems = read_runs([path, tmp_path / "none.jsonl"])
    assert len(runs) == 1 and len(problems) == 4
    assert "line 1 cannot be read" in problems[0] and "line 4 cannot be read" in problems[1]
    assert "line 3 cannot be used: it lacks task" in problems[2] and "none.jsonl" in problems[3]


def test_a_run_that_was_not_a_number_diverged(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "result.json").unlink()
    for reason, diverged in (("the loss is not a number at step 7", True), ("no space left on the disk", False)):
        (path / "run.json").write_text(json.dumps({"status": "failed", "reason": reason}))
        run, _ = read_run(path)
        assert run is not None and run.diverged is diverged and not run.finished and run.reason == reason


def test_a_long_curve_keeps_its_ends() -> None:
    curve = [(step, float(step)) for step in range(1000)]
    found = thinned(curve, 40)
    assert len(found) == 40 and found[0] == curve[0] and found[-1] == curve[-1] and thinned(found, 40) is found


def test_means_over_seeds() -> None:
    runs = [
        Run("r", "lm", "cosformer", seed, "done", scores={"test": {"loss": loss}}, learned={"test": seed > 0})
        for seed, loss in enumerate((1.0, 2.0, 3.0))
    ]
    found = seed_scores(runs, "r", "cosformer", "test", "loss")
    assert found.values == (1.0, 2.0, 3.0) and found.learned == 2
    assert found.mean == 2.0 and found.error == pytest.approx(1 / 3**0.5) and str(found) == "2.00 ± 0.58"
    assert str(seed_scores(runs[:1], "r", "cosformer", "test", "loss")) == "1 (one seed)"
    assert str(seed_scores(runs, "r", "relu", "test", "loss")) == "not run"
    assert str(SeedScores("x", (4.0, 4.0), 2)) == "4.000 ± 0.000"
    uneven = SeedScores("a", (1.0, 2.0, 6.0), 3)
    assert uneven.mean == 3.0 and uneven.error == pytest.approx(math.sqrt(((2**2 + 1 + 3**2) / 2) / 3))
    assert math.isnan(SeedScores("a", (1.0,), 1).error)


def test_results_are_found_by_their_fields_and_come_back_from_the_disk(tmp_path: Path) -> None:
    place = {"kind": "forward", "attention": "relu", "length": 4096, "unit": "ms", "better": "lower"}

    def of(mode: str, value: float) -> Measurement:
        return Measurement(**place, mode=mode, value=value)

    found = (of("causal", 1.0), of("plain", 0.0))
    results = Results("zoo", "cosformer bench", "2000-01-01", {"cpu": "x"}, {"repeats": 3}, found)
    (tmp_path / "a.json").write_text(results.json(), encoding="utf-8")
    assert read_results(tmp_path / "a.json") == results
    assert results.find(mode="plain", length=4096) == [of("plain", 0.0)] and results.one(mode="padded") is None
    assert of("causal", 1.0).key == of("causal", 2.0).key != of("plain", 1.0).key
    assert of("causal", 1.0).what == "relu causal forward, N=4,096"
    (tmp_path / "a.json").write_text(results.json().replace('"unit"', '"size"'), encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.json is no benchmark result .*size"):
        read_results(tmp_path / "a.json")
