"""`cosformer demo`: the whole story at a tiny size, and no claim of what it did not find."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cosformer import cli
from cosformer.bench import exactness, measure
from cosformer.commands import demo, generate
from cosformer.extras import MissingExtra


@pytest.fixture
def short_demo(monkeypatch):
    monkeypatch.setattr(demo, "LENGTHS", (64, 128))
    monkeypatch.setattr(demo, "LENGTH", 64)
    monkeypatch.setattr(demo, "STOPS", (128, 1024))
    monkeypatch.setattr(demo, "WRITING", ["--max-new-tokens", "40"])
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.001)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def without_training(monkeypatch) -> None:
    def missing(extra: str, package: str) -> Any:
        raise MissingExtra(f"this needs {package!r}: pip install 'cosformer[{extra}]'")

    monkeypatch.setattr("cosformer.extras.require", missing)


def finding(error: float) -> exactness.Finding:
    return exactness.Finding("causal", "plain", "float64", error, error, 1e-12)


def test_demo_tells_the_whole_story(short_demo: None, monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(exactness, "measure", lambda: iter([finding(1e-15)]))
    folder = tmp_path / "demo"
    assert cli.main(["demo", "--threads", "1", "--steps", "2", "--output", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "All 1 measurements are within their limit" in out
    assert "From 64 to 128 tokens, 2 times as many" in out
    assert "bytes a second" in out and "\ncosformer " in out and "\nsoftmax " in out
    text = out.partition("$ cosformer generate")[2].partition("\n\n")[2].partition("6. Show me.")[0].rstrip()
    assert text.startswith(generate.DEFAULT_PROMPT) and len(text) > len(generate.DEFAULT_PROMPT) + 20
    assert str((folder / "report.html").resolve()) in out
    page = (folder / "report.html").read_text()
    assert "Exactness" in page and "<img" in page
    # the ratio is that of the times beside it
    rows = re.findall(r"^[\d,]+ +([\d.,]+) ms +([\d.,]+) ms +([\d.]+)x", out, re.MULTILINE)
    assert len(rows) == 2
    for ours, theirs, shown in (map(float, row) for row in rows):
        assert shown == pytest.approx(theirs / ours, abs=0.051)
    # the state is as large after 1,024 bytes as after 128; keys and values grow with them
    read = [re.split(r" {2,}", line.strip()) for line in out.splitlines() if re.match(r"(128|1,024) ", line)]
    (_, _, state, _, cache), (_, _, later_state, _, later_cache) = read[-2:]
    assert state == later_state and cache != later_cache
    # both models were trained, to the same number of updates
    assert {path.name for path in (folder / "runs").iterdir()} == {"cosformer", "softmax"}


@pytest.mark.parametrize("error", [1e-15, 1e-3], ids=["exact", "not exact"])
def test_without_an_extra_it_says_what_is_left_out_and_fails_where_a_form_is_not_exact(
    short_demo: None, without_training: None, error: float, monkeypatch, tmp_path: Path, capsys
) -> None:
    monkeypatch.setattr(exactness, "measure", lambda: iter([finding(error)]))
    exact = error < 1e-12
    code = cli.main(["demo", "--threads", "1", "--output", str(tmp_path / "demo")])
    assert code == (0 if exact else cli.EXIT_FAILED)
    out = capsys.readouterr().out
    assert "were left out" in out and "pip install 'cosformer[train]'" in out
    assert (tmp_path / "demo" / "report.html").exists()
    assert ("1 of 1 measurements exceed" in out) != exact and ("not exact" in out) != exact


@pytest.mark.parametrize("option", ["--threads", "--steps"])
def test_numbers_must_be_positive(option: str, capsys) -> None:
    assert cli.main(["demo", option, "0"]) == cli.EXIT_USAGE
    assert f"{option} 0" in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert demo.new_folder(None) == Path("cosformer-demo")
    (tmp_path / "cosformer-demo").mkdir()
    assert demo.new_folder(None) == Path("cosformer-demo-2")
    (tmp_path / "mine").mkdir()
    assert demo.new_folder(tmp_path / "mine") == tmp_path / "mine"
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(FileExistsError, match="give another --output"):
        demo.new_folder(tmp_path / "mine")
