"""Damaged records: the file is named, what is wrong and what is lost; a run whose checkpoints are whole goes on."""

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest

from cosformer.cli import main
from cosformer.experiment import load_experiment
from cosformer.runs import read_run
from cosformer.train import TrainingFailed, checkpoints, evaluate_run, resume, train
from cosformer.train.vocabulary import load_vocabulary

BRACKETS = "[" * 200_000
ODD = {"empty": "", "brackets": BRACKETS, "list": "[1]", "number": "7", "object": "{}", "null": '{"scores": null}'}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def run(small, finished, tmp_path) -> Path:
    """A copy of a finished run of 8 updates."""
    if not finished.exists():
        train(small(steps=8, save_every=4), finished, quiet=True)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def expected(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())["scores"]


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_an_odd_result_is_named_and_made_again(run, text, capsys) -> None:
    scores = expected(run)
    (run / "result.json").write_text(text)
    assert resume(run, quiet=True)["scores"] == scores == expected(run)
    said = capsys.readouterr().err
    assert str(run / "result.json") in said and "made again from checkpoint-8 on" in said


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_an_odd_run_file_is_named_and_written_again(run, text, capsys) -> None:
    scores = expected(run)
    (run / "result.json").unlink()
    (run / "run.json").write_text(text)
    assert resume(run, quiet=True)["scores"] == scores
    said = capsys.readouterr().err
    assert str(run / "run.json") in said and "with the current time recorded as its start" in said
    assert json.loads((run / "run.json").read_text())["status"] == "done"


@pytest.mark.parametrize(
    "line", ["[1]", "{}", BRACKETS, '{"kind": "eval", "step": 4}', '{"kind": "train", "step": "x"}']
)
def test_odd_lines_of_metrics_do_not_stop_a_run(run, line, metric_lines) -> None:
    scores, before = expected(run), metric_lines(run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "checkpoint-8")
    with open(run / "metrics.jsonl", "a") as file:
        file.write(f"{line}\n")
    assert resume(run, quiet=True)["scores"] == scores
    assert [one for one in metric_lines(run) if "loss" in one or "scores" in one] == before


@pytest.mark.parametrize("text", ["", BRACKETS, "[]", "{}"], ids=["empty", "brackets", "list", "object"])
def test_an_odd_experiment_is_named(run, text) -> None:
    (run / "experiment.json").write_text(text)
    with pytest.raises(ValueError, match=r"run/experiment\.json cannot be read"):
        load_experiment(run)
    assert main(["resume", str(run)]) == 2


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("optimizer.pt", pickle.dumps(Path.home())),
        ("rng_state.pth", pickle.dumps(print)),
        ("scheduler.pt", b"nothing"),
        ("trainer_state.json", BRACKETS.encode()),
        ("counters.json", b"[]"),
    ],
)
def test_a_checkpoint_that_was_sealed_and_cannot_be_read_is_named(run, file, content) -> None:
    """The hashes agree: whoever wrote it, wrote the manifest too."""
    scores = expected(run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "checkpoint-8")
    newest = run / "checkpoints" / "checkpoint-4"
    (newest / file).write_bytes(content)
    checkpoints.seal(newest)
    with pytest.raises(
        TrainingFailed, match=r"checkpoint-4.* cannot be read .*Remove this checkpoint and resume again"
    ):
        resume(run, quiet=True)
    assert not (run / "result.json").exists()
    shutil.rmtree(newest)
    assert resume(run, quiet=True)["scores"] == scores, "the way out that was named"


@pytest.mark.parametrize("name", ["__builtins__", "convert", "StateCache", 5])
def test_an_architecture_that_is_none_is_named(run, name) -> None:
    config = json.loads((run / "best" / "config.json").read_text())
    (run / "best" / "config.json").write_text(json.dumps(config | {"architectures": [name]}))
    checkpoints.seal(run / "best")
    with pytest.raises(ValueError, match=r"run/best cannot be loaded .*--weights last"):
        evaluate_run(run, which="best")
    assert evaluate_run(run, which="last")


@pytest.mark.parametrize("text", ['{"kind": "runes"}', "{}", "", BRACKETS, '{"kind": "bytes"}', '{"kind": "words"}'])
def test_an_odd_vocabulary_is_named(run, text) -> None:
    (run / "best" / "vocabulary.json").write_text(text)
    with pytest.raises(ValueError, match=r"best/vocabulary\.json.*Remove it, and the data is prepared again"):
        load_vocabulary(run)
    (run / "best" / "vocabulary.json").unlink()
    assert load_vocabulary(run).size == 260


ODD_VALUES = {
    "steps": "many",
    "seconds": [1],
    "machine": 3,
    "parameters": {},
    "seed": None,
    "score": 4,
    "best": 9,
    "pid": "x",
}
ODD_SCORES = {"valid": {"loss": "low"}}


@pytest.mark.parametrize("file", ["run.json", "result.json", "metrics.jsonl", "experiment.json"])
@pytest.mark.parametrize("text", [*ODD.values(), None], ids=[*ODD, "values"])
def test_one_odd_record_leaves_the_other_runs_alone(run, tmp_path, file, text, capsys) -> None:
    """`cosformer runs` and `report` name it and show the others."""
    damaged = Path(shutil.copytree(run, tmp_path / "damaged"))
    if text is None:
        lines = (damaged / file).read_text().splitlines() if file == "metrics.jsonl" else [(damaged / file).read_text()]
        odd = ODD_VALUES | {
            "status": 5,
            "scores": ODD_SCORES,
            "baseline": ODD_SCORES,
            "learned": 1,
            "kind": 8,
            "step": "x",
        }
        text = "\n".join(json.dumps(json.loads(line) | odd) for line in lines) + "\n"
    (damaged / file).write_text(text)
    assert main(["runs", str(tmp_path)]) in (0, 1)
    shown, said = capsys.readouterr()
    assert re.search(r"^run .*finished", shown, re.MULTILINE), shown
    assert text in ("", "{}", ODD["null"]) or str(damaged / file) in said, said
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--output", str(page)]) in (0, 1)
    assert "<td>run</td>" in page.read_text() or ">run<" in page.read_text()


@pytest.mark.parametrize("pid", [10**30, 0, -1])
def test_a_number_that_no_process_has_is_that_of_a_killed_run(run, pid) -> None:
    (run / "result.json").unlink()
    info = json.loads((run / "run.json").read_text()) | {"status": "running", "pid": pid}
    (run / "run.json").write_text(json.dumps(info))
    found, _ = read_run(run)
    assert found is not None and found.status == "killed"
