"""Fixtures: a home of its own for every test, and the real files where there are any."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("COSFORMER_HOME", str(folder))
    return folder
