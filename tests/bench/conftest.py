"""Records to test with, and the number of threads as it was."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cosformer.report.measurements import Measurement, Results

MACHINE = {"cpu": "x", "threads": 2, "torch": "2", "instructions": "y", "cores": 2, "system": "z", "python": "3"}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def results() -> Callable[..., Results]:
    def make(benchmark: str, *measurements: Measurement, **settings: Any) -> Results:
        return Results(benchmark, f"cosformer bench {benchmark}", "2000-01-01", MACHINE, settings, measurements)

    return make
