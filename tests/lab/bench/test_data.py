"""`cosformer bench data`: its verdict, its document, and (slowly) the real thing."""

import json
from pathlib import Path

import pytest

from cosformer.cli import main
from cosformer.lab.bench import data as bench
from cosformer.lab.bench.results import Row


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))


def _row(value: float) -> Row:
    return Row("data/x", "a thing", "rows/s", "higher", value=value, low=value, high=value, goal=2.0)


@pytest.mark.parametrize(("value", "code", "word"), [(3.0, 0, "yes"), (1.0, 1, "no")])
def test_a_missed_goal_is_a_failure(
    value: float,
    code: int,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(bench, "rows", lambda *_: iter([_row(value)]))
    assert main(["bench", "data", "--json", str(tmp_path / "r.json")]) == code
    assert capsys.readouterr().out.splitlines()[-1].endswith(word)
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert row["id"] == "data/x" and row["value"] == value


def test_one_repeat_has_no_spread(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "data", "--repeats", "1"]) == 2
    assert "at least 2" in capsys.readouterr().err


@pytest.mark.slow
def test_every_measurement_is_made() -> None:
    found = list(bench.rows(None, None, 2))
    assert [row.id.split("/")[1] for row in found] == ["listops", *["pathfinder"] * 3, "bpe", "batches"]
    assert all(row.value is not None and row.value > 0 and row.goal is not None for row in found)
