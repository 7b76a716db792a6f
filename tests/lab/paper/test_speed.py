"""Claims on time and memory, from made-up benchmark results."""

from pathlib import Path

import pytest

from cosformer.lab.paper.speed import exponent, order_verdict, speed_claims
from cosformer.lab.paper.verdict import FAILS, HOLDS, NOT_RUN, UNDECIDED
from cosformer.lab.records import Measurement, Results


def write(folder: Path, name: str, found: list[Measurement]) -> None:
    results = Results(name, "made up", "2026-01-01", {}, {}, tuple(found))
    (folder / f"{name}.json").write_text(results.json())


def forward(power: float) -> list[Measurement]:
    return [
        Measurement(
            kind="forward",
            attention="cosformer",
            mode=mode,
            length=n,
            baseline="sdpa",
            unit="times faster",
            better="higher",
            milliseconds=(n / 1024) ** power,
            baseline_milliseconds=n**2.0,
        )
        for mode in ("causal", "non-causal")
        for n in (64, 1024, 4096, 16384)
    ]


def memory(mode: str, power: int) -> list[Measurement]:
    place = {"kind": "memory", "attention": "cosformer", "mode": mode, "unit": "MB", "better": "lower"}
    return [Measurement(**place, length=n, value=float(n**power)) for n in (1024, 8192)]


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
    write(tmp_path, "zoo", [*memory("plain", 1), *memory("causal", power)])
    assert outcomes(tmp_path)["linear-memory"] == outcome


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "attention.json").write_text("{")
    entries, problems = speed_claims(tmp_path)
    assert {entry["outcome"] for entry in entries} == {NOT_RUN}
    assert len(problems) == 3 and "attention.json is no benchmark result" in problems[0]


def test_the_order_of_speed() -> None:
    assert order_verdict([], 0, 0).outcome == NOT_RUN
    assert order_verdict([], 2, 5).outcome == HOLDS
    assert order_verdict([], 3, 5).outcome == UNDECIDED
    assert order_verdict(["linformer is slower at 2,048 in training"], 0, 5).outcome == FAILS
