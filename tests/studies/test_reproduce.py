"""``python -m studies.cosformer2022 … --show``: what it reads, and that looking changes nothing."""

import shutil
from pathlib import Path

import pytest

from studies.cosformer2022 import __main__ as study
from studies.cosformer2022.rates import RATES

DOCS = Path(__file__).parents[2] / "docs"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_fresh_clone_shows_the_committed_verdicts_and_writes_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    shutil.copytree(DOCS / "results", tmp_path / "docs" / "results")
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    assert study.main(["ledger", "--show"]) == 0
    captured = capsys.readouterr()
    rows = dict(line.split(maxsplit=1) for line in captured.out.splitlines() if line)
    assert rows["linear-time"].startswith("holds here") and "lm" in rows
    assert "runs.jsonl" in captured.err
    assert files(tmp_path) == before and not (tmp_path / "runs").exists()


def test_the_committed_search_of_rates_is_shown(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert study.main(["rates", "--show", "--docs", str(DOCS)]) == 0
    captured = capsys.readouterr()
    assert RATES and all(f"{recipe}, validation loss by rate" in captured.out for recipe in RATES)
    assert "searching" in captured.out, "on Pathfinder the best of three lies at an end, so the range grows"


def test_without_records_it_says_what_to_give(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert study.main(["ledger", "--show", "--records", "nowhere"]) == 0
    captured = capsys.readouterr()
    assert "not run" in captured.out and "holds here" not in captured.out
    assert "runs.jsonl" in captured.err and "--from" in captured.err
    assert list(tmp_path.iterdir()) == []


def test_runs_of_ones_own_come_before_the_committed_ones(tmp_path: Path, monkeypatch, capsys) -> None:
    from cosformer.runs import Run

    monkeypatch.chdir(tmp_path)
    mine = Run("lm-wikitext2-small", "lm", "cosformer", 0, "done", scores={"test": {"word_perplexity": 1234.0}})
    monkeypatch.setattr(study, "collect", lambda cells, runs: ([mine], []))
    assert study.main(["table2", "--show", "--docs", str(DOCS)]) == 0
    captured = capsys.readouterr()
    assert "1,234 (one seed)" in captured.out and "committed" not in captured.err


def test_a_missing_extra_is_said_before_anything_starts(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "find_spec", lambda name: None)
    monkeypatch.setattr(study, "train", lambda *args, **options: pytest.fail("it started"))
    assert study.main(["table2"]) == 2
    assert "pip install 'cosformer[train]'" in capsys.readouterr().err
