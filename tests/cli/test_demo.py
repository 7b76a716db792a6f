"""`cosformer demo`: shows exactness and speed, and does not claim what it did not find."""

import pytest
import torch

from cosformer import cli
from cosformer.bench import exactness, measure
from cosformer.commands import demo


@pytest.fixture
def short_demo(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo, "LENGTHS", (64, 128))
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.001)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def finding(error: float) -> exactness.Finding:
    return exactness.Finding("causal", "chunked", "float64", error, error, 1e-12)


def test_demo_shows_exactness_and_speed(
    short_demo: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exactness, "measure", lambda: iter([finding(1e-15)]))
    assert cli.main(["demo", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "All 1 measurements are within their limit" in out
    assert "128" in out and "From 64 to 128 tokens, 2 times as many" in out
    assert "cosformer check" in out.splitlines()[-1]


def test_demo_fails_where_a_form_is_not_exact(
    short_demo: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exactness, "measure", lambda: iter([finding(1e-3)]))
    assert cli.main(["demo", "--threads", "1"]) == cli.EXIT_FAILED
    out = capsys.readouterr().out
    assert "1 of 1 measurements exceed" in out and "not exact" in out


def test_threads_must_be_positive(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--threads", "0"]) == cli.EXIT_USAGE
    assert "--threads 0" in capsys.readouterr().err
