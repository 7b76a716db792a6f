"""The rules of the ledger, case by case."""

import math
from pathlib import Path

import pytest
from scipy import stats

from cosformer.report.measurements import Measurement, Results
from studies.cosformer2022.speed import exponent, order_verdict, speed_claims
from studies.cosformer2022.verdict import (
    FAILS,
    HOLDS,
    NOT_RUN,
    UNDECIDED,
    Effect,
    Verdict,
    decide,
    holm,
    paired,
    t_cdf,
    t_quantile,
    together,
)

SPREAD = (-0.2, -0.1, 0.0, 0.1, 0.2)  # mean 0, standard error 0.0707, t with four degrees of freedom 2.776: +-0.196


def outcome(shift: float, margin: float | None = None) -> str:
    first = {seed: 10 + shift + extra for seed, extra in enumerate(SPREAD)}
    effect = paired(first, dict.fromkeys(range(5), 10.0), higher_is_better=True, margin=margin)
    return decide(effect, effect.p, names=("a", "b"), unit="points").outcome


def test_the_interval_and_p_are_those_of_the_paired_t_test() -> None:
    first, second = (2.1, 2.3, 2.2, 2.6, 2.0), (2.0, 2.1, 2.3, 2.2, 1.9)
    effect = paired(dict(enumerate(first)), dict(enumerate(second)), higher_is_better=True, margin=None)
    theirs = stats.ttest_rel(first, second)
    assert effect.p == pytest.approx(theirs.pvalue)
    interval = theirs.confidence_interval(0.95)
    assert effect.interval == pytest.approx((interval.low, interval.high))
    # four in five such samples show a true effect of this size, with the noncentral t and not our shortcut
    power = stats.nct.sf(stats.t.ppf(0.975, 4), 4, effect.smallest / effect.error)
    assert power == pytest.approx(0.8, abs=0.05)


def test_only_seeds_that_both_have_count_and_lower_may_be_better() -> None:
    effect = paired({0: 1.0, 1: 2.0, 7: 5.0}, {0: 1.5, 1: 2.25, 3: 9.0}, higher_is_better=False, margin=0.1)
    assert effect.differences == (0.5, 0.25) and effect.null == -0.1


@pytest.mark.parametrize(
    ("shift", "expected"), [(0.197, HOLDS), (0.195, UNDECIDED), (-0.195, UNDECIDED), (-0.197, FAILS)]
)
def test_better_means_the_interval_is_above_zero(shift: float, expected: str) -> None:
    assert outcome(shift) == expected


@pytest.mark.parametrize(
    ("shift", "margin", "expected"),
    [(0.0, 0.197, HOLDS), (0.0, 0.195, UNDECIDED), (-0.1, 0.3, HOLDS), (-0.5, 0.3, FAILS), (-0.49, 0.3, UNDECIDED)],
)
def test_on_par_means_the_interval_is_above_minus_the_margin(shift: float, margin: float, expected: str) -> None:
    assert outcome(shift, margin) == expected


def test_pairing_sees_what_means_apart_do_not() -> None:
    """Seeds differ by ten times the effect, and by the same on both sides."""
    second = {seed: 10.0 * seed for seed in range(5)}
    first = {seed: value + 1 + SPREAD[seed] for seed, value in second.items()}
    effect = paired(first, second, higher_is_better=True, margin=None)
    assert decide(effect, effect.p, names=("a", "b"), unit="points").outcome == HOLDS


def test_equal_differences_decide_and_no_difference_does_not() -> None:
    assert Effect((0.5, 0.5, 0.5)).p == 0.0 and Effect((0.0, 0.0, 0.0)).p == 1.0


def test_holm_counts_what_has_not_run() -> None:
    assert holm({"a": 0.01, "b": 0.02, "c": 0.04}, 3) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.04})
    # a family of seven of which three have run: as if four had p = 1
    assert holm({"a": 0.01, "b": 0.02, "c": 0.04}, 7) == pytest.approx({"a": 0.07, "b": 0.12, "c": 0.2})
    assert holm({"a": 0.9}, 7) == {"a": 1.0}
    with pytest.raises(ValueError, match="2 p values in a family of 1"):
        holm({"a": 0.1, "b": 0.2}, 1)


def test_an_adjusted_p_overrules_the_interval() -> None:
    effect = Effect(tuple(0.2 + extra for extra in SPREAD))
    assert effect.p < 0.05 and effect.interval[0] > 0
    assert decide(effect, 7 * effect.p, names=("a", "b"), unit="nats").outcome == UNDECIDED


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((HOLDS, HOLDS), HOLDS),
        ((HOLDS, UNDECIDED), UNDECIDED),
        ((HOLDS, FAILS, UNDECIDED), FAILS),
        ((HOLDS, NOT_RUN), UNDECIDED),
        ((NOT_RUN, NOT_RUN), NOT_RUN),
        ((), NOT_RUN),
    ],
)
def test_a_claim_of_several_parts(outcomes: tuple[str, ...], expected: str) -> None:
    assert together([Verdict(word, "why") for word in outcomes]).outcome == expected


@pytest.mark.parametrize("freedom", range(1, 12))
def test_student_s_t_is_scipy_s(freedom: int) -> None:
    for t in (-40.0, -2.5, -0.3, 0.0, 1.0, 3.7, 120.0):
        assert t_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-12)
    for share in (0.001, 0.2, 0.5, 0.8, 0.975, 0.999):
        assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), abs=1e-9, rel=1e-9)


def test_student_s_t_at_its_ends() -> None:
    assert (t_cdf(math.inf, 4), t_cdf(-math.inf, 4)) == (1.0, 0.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        t_quantile(1.0, 4)


# --- claims on time and memory, from made-up benchmark results


def write(folder: Path, name: str, found: list[Measurement]) -> None:
    results = Results(name, "made up", "2026-01-01", {}, {}, tuple(found))
    (folder / f"{name}.json").write_text(results.json())


def forward(power: float) -> list[Measurement]:
    place = {"kind": "forward", "attention": "cosformer", "baseline": "sdpa", "unit": "times", "better": "higher"}
    times = {n: {"milliseconds": (n / 1024) ** power, "baseline_milliseconds": n**2.0} for n in (64, 1024, 4096, 16384)}
    return [Measurement(**place, mode=mode, length=n, **times[n]) for mode in ("causal", "non-causal") for n in times]


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
