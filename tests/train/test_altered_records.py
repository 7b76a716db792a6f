"""Edited settings and altered records are reported; none of them is silently believed."""

import dataclasses
import hashlib
import json
import random
import re
import shutil
from pathlib import Path

import pytest

from cosformer.cli import main
from cosformer.records_file import RecordsFile
from cosformer.runs import read_run
from cosformer.train import evaluate_run, resume, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def run(small, finished, tmp_path) -> Path:
    """A copy of a finished run of 8 updates."""
    if not finished.exists():
        train(small(steps=8, save_every=4), finished, quiet=True)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def unfinished(run: Path) -> Path:
    """As if it had been killed before its last checkpoint."""
    (run / "result.json").unlink()
    shutil.rmtree(run / "checkpoints" / "checkpoint-8")
    return run


def edit(run: Path, part: str, **values) -> None:
    experiment = json.loads((run / "experiment.json").read_text())
    experiment[part] |= values
    (run / "experiment.json").write_text(json.dumps(experiment))


def altered(run: Path) -> str:
    found, problems = read_run(run)
    assert found is not None and set(found.altered) <= set(problems)
    return "; ".join(found.altered)


def test_a_healthy_run_agrees(run, small, tmp_path) -> None:
    assert altered(run) == ""
    unfinished(run)
    resume(run, quiet=True)
    resume(run, steps=10, quiet=True)
    assert altered(run) == ""
    edit(run, "train")  # other spaces, the same values
    assert altered(run) == ""


def test_an_edited_setting_is_refused_and_named(run, capsys) -> None:
    edit(unfinished(run), "train", lr=0.012)
    said = r"train\.lr is 0\.012, was 0\.003\. Put it back, or .*--apply-changes"
    with pytest.raises(ValueError, match=said):
        resume(run, quiet=True)
    assert not (run / "result.json").exists() and "train.lr is 0.012, was 0.003" in altered(run)
    assert main(["runs", str(run)]) == 0
    assert re.search(r"unknown, altered|done, altered|finished, altered", capsys.readouterr().out)
    edit(run, "train", lr=0.003)
    resume(run, quiet=True)
    assert altered(run) == ""


def test_an_edited_setting_of_a_finished_run_is_told_too(run) -> None:
    edit(run, "data", length=32)
    with pytest.raises(
        ValueError, match=r"data\.length is 32, was 64\. A run that has begun cannot change data\.length"
    ):
        resume(run, quiet=True)


@pytest.mark.parametrize(
    ("part", "values", "said"),
    [
        ("train", {"steps": 20}, r"cosformer resume .* --steps N"),
        ("model", {"num_hidden_layers": 3}, r"cannot change model\.num_hidden_layers"),
        ("train", {"batch": 8, "lr": 0.1}, "cannot change train.batch"),
    ],
)
def test_what_a_run_cannot_change_is_refused_with_the_option_too(run, part, values, said) -> None:
    edit(unfinished(run), part, **values)
    with pytest.raises(ValueError, match=said):
        resume(run, apply_changes=True, quiet=True)


def test_a_changed_rate_is_applied_and_recorded(run, capsys) -> None:
    def rates() -> dict[int, float]:
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        return {line["step"]: line["lr"] for line in lines if line["kind"] == "train"}

    before = rates()
    edit(unfinished(run), "train", lr=0.012)
    result = resume(run, apply_changes=True, quiet=True)
    assert "train.lr is 0.012, was 0.003: applied from update 4 on" in capsys.readouterr().err
    after = rates()
    assert after[4] == before[4] and after[6] == pytest.approx(4 * before[6])
    recorded = [{"update": 4, "settings": {"train.lr": [0.003, 0.012]}}]
    assert result["changes"] == recorded == json.loads((run / "result.json").read_text())["changes"]
    assert altered(run) == "" and resume(run, quiet=True)["changes"] == recorded
    with pytest.raises(ValueError, match="changes apply to updates to come"):
        resume(run, apply_changes=True, quiet=True)
    with pytest.raises(ValueError, match="no setting of"):
        resume(run, apply_changes=True, steps=10, quiet=True)


def test_a_lengthened_run_records_it(run) -> None:
    assert resume(run, steps=10, quiet=True)["changes"] == [{"update": 8, "settings": {"train.steps": [8, 10]}}]


@pytest.mark.parametrize("file", ["result.json", "run.json", "metrics.jsonl"])
def test_a_changed_digit_is_marked(run, file, tmp_path, capsys) -> None:
    text = (run / file).read_text()
    place = re.search(r'"loss": \d\.(\d)|"seconds": (\d)', text)
    assert place
    at = place.start(place.lastindex or 0)
    (run / file).write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
    assert altered(run) == f"{run / file} is not as the run wrote it"
    page = tmp_path / "page.html"
    assert main(["runs", str(run)]) == main(["report", str(run), "-o", str(page)]) == 0
    shown, said = capsys.readouterr()
    assert "finished, altered" in shown and f"{run / file} is not as the run wrote it" in said
    assert "finished, altered" in page.read_text() and "is not as the run wrote it" in page.read_text()


def test_an_altered_result_is_made_again(run, capsys) -> None:
    right = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(right | {"steps": 9}))
    assert resume(run, quiet=True)["scores"] == right["scores"]
    assert "is not as the run wrote it; it is made again from checkpoint-8 on" in capsys.readouterr().err
    assert altered(run) == ""


def test_altered_metrics_stay_marked_after_a_resume(run, capsys) -> None:
    """What was edited is not made right by hashing it again."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (unfinished(run) / "metrics.jsonl").write_text("".join([lines[0].replace('"loss": ', '"loss": 1'), *lines[1:]]))
    resume(run, quiet=True)
    assert "metrics.jsonl is not as the run wrote it; its lines are kept" in capsys.readouterr().err
    assert "metrics.jsonl is not as the run wrote it; its lines are kept" in altered(run)


def test_a_kill_between_two_writes_is_no_alarm(run) -> None:
    """Half of a replacement, in each order; a line whose hash was not written yet."""
    unfinished(run)
    records = RecordsFile(run)
    records.files.pop("result.json")
    records.save()
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "ste')
    assert altered(run) == ""
    old = (run / "run.json").read_text()
    for content in (old, "new"):
        records = RecordsFile(run)
        records.write("run.json", "new")
        records.files["run.json"] = [
            {"size": len(old), "sha256": hashlib.sha256(old.encode()).hexdigest()},
            *records.files["run.json"],
        ]
        records.save()
        (run / "run.json").write_text(content)
        assert records.disagreement("run.json") == ""


def test_no_flip_in_any_record_goes_unnoticed(run) -> None:
    chance = random.Random(0)
    for name in ("run.json", "result.json", "metrics.jsonl", "records.json", "experiment.json"):
        content = (run / name).read_bytes()
        for _ in range(20):
            flipped = bytearray(content)
            flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            (run / name).write_bytes(flipped)
            try:
                same = json.loads(flipped) == json.loads(content)
            except ValueError:
                same = False
            _, problems = read_run(run)
            assert (same and name in ("records.json", "experiment.json")) or problems, bytes(flipped)
        (run / name).write_bytes(content)
    assert altered(run) == ""


def test_a_damaged_records_file_is_told_and_the_run_goes_on(run, capsys) -> None:
    (unfinished(run) / "records.json").write_text("{}")
    assert "records.json is damaged" in altered(run)
    resume(run, quiet=True)
    assert "records.json is damaged" in capsys.readouterr().err and "taken as they are now" in altered(run)


def test_a_run_of_an_earlier_version_has_none(run) -> None:
    (unfinished(run) / "records.json").unlink()
    assert altered(run) == ""
    resume(run, quiet=True)
    assert altered(run) == "" and (run / "records.json").exists()


def test_edited_settings_are_told_before_a_run_is_scored(run, capsys) -> None:
    edit(run, "data", eval_rows=8)
    assert evaluate_run(run)
    assert "data.eval_rows is 8, was 16; the scores are those of the edited settings" in capsys.readouterr().err


def test_damaged_best_weights_are_refused_wherever_they_are_used(run, small, tmp_path, capsys) -> None:
    content = bytearray((run / "best" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "best" / "model.safetensors").write_bytes(content)
    for words in (["generate", str(run), "--prompt", "a"], ["convert", str(run), str(tmp_path / "out")]):
        assert main(words) == 2
        assert "best/model.safetensors is damaged" in capsys.readouterr().err

    with pytest.raises(ValueError, match=r"best/model\.safetensors is damaged"):
        train(dataclasses.replace(small(steps=1), start=str(run)), tmp_path / "second", quiet=True)


@pytest.mark.parametrize(
    "odd",
    [
        {"files": [1]},
        {"files": {"metrics.jsonl": "x"}},
        {"files": {"metrics.jsonl": [5]}},
        {"files": {"metrics.jsonl": [{"size": "a", "sha256": ""}]}},
        {"files": {"../metrics.jsonl": [None]}},
        {"notes": [5]},
        {"changes": 7},
        {"settings": "x"},
    ],
    ids=str,
)
def test_records_made_by_hand_are_damaged_ones(run, odd) -> None:
    values = {"settings": None, "changes": [], "notes": [], "files": {}} | odd
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    (run / "records.json").write_text(json.dumps(values | {"sha256": digest}))
    assert "records.json is damaged" in altered(run)
    assert resume(run, quiet=True)["scores"]


@pytest.mark.parametrize("file", ["experiment.json", "metrics.jsonl", "records.json", "best/model.safetensors"])
def test_no_command_writes_over_what_belongs_to_a_run(run, file, capsys, monkeypatch) -> None:
    before = (run / file).read_bytes()
    monkeypatch.chdir(run.parent)
    for words in (["report", "run", "-o"], ["visualize", "run", "--text", "a", "-o"], ["bench", "attention", "--json"]):
        with pytest.raises(SystemExit, match="2"):
            main([*words, f"run/{file}"])
        assert f"run/{file} belongs to the run" in capsys.readouterr().err
    assert (run / file).read_bytes() == before
    assert main(["report", "run", "-o", "run/page.html"]) == 0
