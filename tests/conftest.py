"""Fixtures of several folders; a folder asks for those it wants."""

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cosformer import processor

SAID = processor.prepare()  # before torch is loaded, here and in the processes that tests start
os.environ.setdefault(
    "GOMP_SPINCOUNT", "10000"
)  # as our commands do: tests of several threads end on a busy machine too

import torch  # noqa: E402


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if SAID:
        terminalreporter.write_line(SAID)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture(scope="session")
def real() -> Callable[[str], Path]:
    """The path of a real file, or a skip that says what is missing."""
    root = os.environ.get("COSFORMER_TEST_DATA")
    if not root:
        pytest.skip("COSFORMER_TEST_DATA is not set: no real files to test on")
    return lambda name: Path(root) / name


@pytest.fixture(scope="session")
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepared data goes to a folder of its own, for this process and those it starts."""
    before = os.environ.get("COSFORMER_HOME")
    os.environ["COSFORMER_HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    if before is None:
        del os.environ["COSFORMER_HOME"]
    else:
        os.environ["COSFORMER_HOME"] = before


@pytest.fixture
def own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attentions, data sets, tasks and recipes that a test registers are gone after it."""
    for module, name in (
        ("cosformer.attention", "ATTENTIONS"),
        ("cosformer.data", "DATASETS"),
        ("cosformer.tasks", "TASKS"),
        ("cosformer.recipes", "RECIPES"),
    ):
        monkeypatch.setattr(f"{module}.{name}", dict(getattr(importlib.import_module(module), name)))


def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    yield from _threads(1)


@pytest.fixture
def two_threads() -> Iterator[None]:
    yield from _threads(2)
