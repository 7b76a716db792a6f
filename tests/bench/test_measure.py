"""Times and peaks: taking turns, median and quartiles, a fresh process."""

import time
from typing import Any

import pytest
import torch

from cosformer import machine
from cosformer.bench import attention, measure
from cosformer.report.measurements import DIFFERENCE, Measurement


def test_interleaved_takes_turns_and_times_each() -> None:
    calls: list[str] = []

    def action(name: str, seconds: float) -> Any:
        def run() -> None:
            calls.append(name)
            time.sleep(seconds)

        return run

    samples = measure.interleaved({"a": action("a", 0.03), "b": action("b", 0.06)}, repeats=4)
    assert {name: len(found) for name, found in samples.items()} == {"a": 4, "b": 4}
    assert "".join(calls[-8:]) == "abbaabba"
    assert 1.2 < measure.spread(samples["b"]).median / measure.spread(samples["a"]).median < 3


def test_interleaved_stops_at_its_budget_but_not_below_three() -> None:
    samples = measure.interleaved({"a": lambda: time.sleep(0.03)}, repeats=50, budget=0.1)
    assert 3 <= len(samples["a"]) < 10
    assert len(measure.interleaved({"a": lambda: time.sleep(0.03)}, repeats=50, budget=0.0)["a"]) == 3


def test_short_calls_are_repeated_within_a_sample() -> None:
    count = 0

    def run() -> None:
        nonlocal count
        count += 1

    measure.interleaved({"a": run}, repeats=1)
    assert count > 1000


def test_spread_is_the_median_and_the_quartiles() -> None:
    assert measure.spread([1.0, 2.0, 3.0, 4.0, 100.0]) == (3.0, 2.0, 4.0)
    assert measure.spread([7.0]) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("better", "unit", "value"), [("higher", "x", 3.0), ("lower", "x", 1 / 3), ("lower", DIFFERENCE, -2e6)]
)
def test_ours_is_compared_with_the_baseline(better: Any, unit: str, value: float) -> None:
    m = Measurement(kind="forward", attention="cosformer", unit=unit, better=better)
    found = measure.compared(m, [1.0, 1.0], [3.0, 3.0])
    assert found.value == pytest.approx(value, rel=1e-3)
    assert (found.milliseconds, found.baseline_milliseconds) == (1000.0, 3000.0)
    alone = measure.compared(m, [1.0, 1.0], None)  # nothing to compare with, but the time stands
    assert alone.value is None and alone.milliseconds == 1000.0 and alone.baseline_milliseconds is None


def test_peak_sees_memory_that_is_gone_again() -> None:
    grown = measure.in_fresh_process("cosformer.bench.attention:training_peak", 1, n=4096, backend="plain")
    tensors = 7 * 4096 * attention.HEADS * attention.HEAD_DIM * 4  # q, k, v, out and the gradients of q, k, v
    assert tensors < grown < 6 * tensors


def test_a_fresh_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="no_such_function"):
        measure.in_fresh_process("cosformer.bench.attention:no_such_function", 1)


def test_machine_is_described() -> None:
    about = machine.describe(2)
    assert about["threads"] == 2 and about["torch"] == torch.__version__ and about["cpu"]
    assert machine.memory("MemTotal") >= machine.memory("MemAvailable") > 0
