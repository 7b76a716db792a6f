"""Claims on time and memory, from made-up benchmark results."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosformer.lab.paper.speed import exponent, order_verdict, speed_claims
from cosformer.lab.paper.verdict import FAILS, HOLDS, NOT_RUN, UNDECIDED


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    full = [{"what": "", "unit": "", "better": "lower", **row} for row in rows]
    (folder / f"{name}.json").write_text(json.dumps({"format": 1, "rows": full}))


def forward(power: float) -> list[dict[str, Any]]:
    return [
        {"id": f"forward/{mode}/{n}/sdpa", "milliseconds": {"cosformer": (n / 1024) ** power, "sdpa": n**2.0}}
        for mode in ("causal", "non-causal")
        for n in (64, 1024, 4096, 16384)
    ]


def outcomes(folder: Path) -> dict[str, str]:
    return {entry["key"]: entry["outcome"] for entry in speed_claims(folder)[0]}


def test_the_exponent_goes_from_the_first_length_above_1024_to_the_last() -> None:
    assert exponent({64: 100.0, 1024: 1.0, 2048: 7.0, 4096: 16.0}) == pytest.approx(2.0)
    assert exponent({64: 100.0, 1024: 1.0}) is None


@pytest.mark.parametrize(("power", "outcome"), [(1.0, HOLDS), (1.14, HOLDS), (1.16, FAILS), (2.0, FAILS)])
def test_linear_time(tmp_path: Path, power: float, outcome: str) -> None:
    write(tmp_path, "attention", forward(power))
    assert outcomes(tmp_path)["linear-time"] == outcome
    (entry, *_), _ = speed_claims(tmp_path)
    assert "(softmax: 2.00) from 1,024 to 16,384 tokens" in entry["reason"]


@pytest.mark.parametrize(("power", "outcome"), [(1, HOLDS), (2, FAILS)])
def test_linear_memory_needs_both_forms(tmp_path: Path, power: int, outcome: str) -> None:
    sizes = {str(n): float(n**power) for n in (1024, 8192)}
    rows = [{"id": "zoo/cosformer/plain/memory", "by_length": {"1024": 1.0, "8192": 8.0}}]
    write(tmp_path, "zoo", [*rows, {"id": "zoo/cosformer/causal/memory", "by_length": sizes}])
    assert outcomes(tmp_path)["linear-memory"] == outcome


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "attention.json").write_text("{")
    entries, problems = speed_claims(tmp_path)
    assert {entry["outcome"] for entry in entries} == {NOT_RUN}
    assert len(problems) == 3 and "attention.json is not JSON" in problems[0]


def test_the_order_of_speed() -> None:
    assert order_verdict([], 0, 0).outcome == NOT_RUN
    assert order_verdict([], 2, 5).outcome == HOLDS
    assert order_verdict([], 3, 5).outcome == UNDECIDED
    assert order_verdict(["linformer is slower at 2,048 in training"], 0, 5).outcome == FAILS
