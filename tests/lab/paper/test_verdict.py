"""The rule of the ledger, case by case."""

import math

import pytest

from cosformer.lab.paper.verdict import FAILS, HOLDS, NOT_RUN, UNDECIDED, Sample, Verdict, better, on_par, together


def sample(name: str, *values: float, learned: int | None = None) -> Sample:
    return Sample(name, values, len(values) if learned is None else learned)


LOSS = {"higher_is_better": False, "unit": "nats"}
ACCURACY = {"higher_is_better": True, "unit": "points"}


def test_mean_and_standard_error_are_those_of_the_textbook() -> None:
    found = sample("a", 1.0, 2.0, 6.0)
    assert found.mean == 3.0
    assert found.error == pytest.approx(math.sqrt(((2**2 + 1 + 3**2) / 2) / 3))
    assert math.isnan(sample("a", 1.0).error)


# s = 1 on both sides, so two standard errors are 2 * sqrt(1/3 + 1/3) = 1.633
@pytest.mark.parametrize(("shift", "outcome"), [(1.64, HOLDS), (1.62, UNDECIDED), (-1.62, UNDECIDED), (-1.64, FAILS)])
def test_better_means_by_two_standard_errors(shift: float, outcome: str) -> None:
    first, second = sample("a", 9 + shift, 10 + shift, 11 + shift), sample("b", 9, 10, 11)
    assert better(first, second, **ACCURACY).outcome == outcome
    # the same differences, where lower is better
    assert better(sample("a", 9 - shift, 10 - shift, 11 - shift), second, **LOSS).outcome == outcome


@pytest.mark.parametrize(
    ("shift", "resolution", "outcome"),
    [(0, 1.7, HOLDS), (-1.62, 1.7, HOLDS), (-1.64, 1.7, FAILS), (-1.62, 1.6, UNDECIDED), (1.64, 1.6, HOLDS)],
)
def test_on_par_means_not_worse_and_the_test_could_have_told(shift: float, resolution: float, outcome: str) -> None:
    first, second = sample("a", 9 + shift, 10 + shift, 11 + shift), sample("b", 9, 10, 11)
    assert on_par(first, second, **ACCURACY, resolution=resolution).outcome == outcome


def test_the_reason_gives_the_numbers() -> None:
    found = better(sample("cosformer", 4.0, 4.1, 4.2), sample("relu", 5.0, 5.1, 5.2), **LOSS)
    assert found == Verdict(HOLDS, "cosformer is 1 nats better than relu; two standard errors are 0.16")


def test_too_few_seeds_decide_nothing() -> None:
    found = better(sample("a", 1.0, 1.1), sample("b", 9.0, 9.1, 9.2), **ACCURACY)
    assert found == Verdict(UNDECIDED, "a has 2 of at least 3 seeds")


def test_without_runs_it_is_not_run() -> None:
    assert on_par(sample("a", 1, 1, 1), sample("b"), **LOSS, resolution=1) == Verdict(NOT_RUN, "no run with b")


def test_two_models_at_chance_decide_nothing_but_one_does() -> None:
    good, bad = sample("a", 9.0, 9.1, 9.2, learned=2), sample("b", 5.0, 5.1, 5.2, learned=0)
    assert better(good, bad, **ACCURACY).outcome == HOLDS
    found = better(sample("a", 9.0, 9.1, 9.2, learned=1), bad, **ACCURACY)
    assert found.outcome == UNDECIDED and "neither a nor b learned" in found.reason


def test_a_claim_of_parts() -> None:
    holds, fails, open_, missing = (Verdict(o, o[:3]) for o in (HOLDS, FAILS, UNDECIDED, NOT_RUN))
    assert together([holds, holds]).outcome == HOLDS
    assert together([holds, fails, missing]).outcome == FAILS
    assert together([holds, open_]).outcome == UNDECIDED
    assert together([holds, missing]).outcome == UNDECIDED
    assert together([missing, missing]) == Verdict(NOT_RUN, "not")
    assert together([]).outcome == NOT_RUN
    assert together([holds, fails]).reason == "hol; doe"
