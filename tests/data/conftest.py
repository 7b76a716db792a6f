"""Fixtures: a home of its own for every test, and the real files where there are any."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("COSFORMER_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def real() -> Callable[[str], Path]:
    """The path of a real file, or a skip that says what is missing."""
    root = os.environ.get("COSFORMER_TEST_DATA")
    if not root:
        pytest.skip("COSFORMER_TEST_DATA is not set: no real files to test on")
    return lambda name: Path(root) / name
