"""The rule by which a claim is judged, fixed before the runs: two standard errors over seeds (docs/results/protocol.md)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cosformer.lab.records import Sample

HOLDS, FAILS, UNDECIDED, NOT_RUN = "holds here", "does not hold here", "undecided", "not run"
FEWEST_SEEDS = 3
ERRORS = 2.0  # standard errors by which two means must differ


@dataclass(frozen=True)
class Verdict:
    """``outcome`` is one of the four words above; ``reason`` says it in numbers."""

    outcome: str
    reason: str


def better(first: Sample, second: Sample, *, higher_is_better: bool, unit: str) -> Verdict:
    """Whether ``first`` is better than ``second``: by more than two standard errors of the difference."""
    found = _undecidable(first, second)
    if found:
        return found
    gain, bound = _gain(first, second, higher_is_better)
    text = _numbers(first, second, gain, bound, unit)
    if gain > bound:
        return Verdict(HOLDS, text)
    if gain < -bound:
        return Verdict(FAILS, text)
    return Verdict(UNDECIDED, f"{text}: the spread over seeds is as large as the difference")


def on_par(first: Sample, second: Sample, *, higher_is_better: bool, unit: str, resolution: float) -> Verdict:
    """Whether ``first`` is at least as good as ``second``: not worse by more than two standard errors of the difference.

    resolution: where two standard errors exceed it the test could not have seen a difference that matters, and a difference
    below them decides nothing.
    """
    found = _undecidable(first, second)
    if found:
        return found
    gain, bound = _gain(first, second, higher_is_better)
    text = _numbers(first, second, gain, bound, unit)
    if gain < -bound:
        return Verdict(FAILS, text)
    if gain > bound or bound <= resolution:
        return Verdict(HOLDS, text)
    return Verdict(UNDECIDED, f"{text}: the spread over seeds would hide a difference of {resolution:g} {unit}")


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim of several parts: fails with any part, holds with all of them, is not run while none of them is."""
    outcomes = [verdict.outcome for verdict in verdicts]
    reason = "; ".join(dict.fromkeys(verdict.reason for verdict in verdicts))
    if not outcomes or all(outcome == NOT_RUN for outcome in outcomes):
        return Verdict(NOT_RUN, reason)
    if FAILS in outcomes:
        return Verdict(FAILS, reason)
    return Verdict(HOLDS if set(outcomes) == {HOLDS} else UNDECIDED, reason)


def _undecidable(first: Sample, second: Sample) -> Verdict | None:
    """Why two samples cannot be compared, if they cannot."""
    for sample in (first, second):
        if not sample.values:
            return Verdict(NOT_RUN, f"no run with {sample.name}")
    few = [f"{s.name} has {len(s.values)}" for s in (first, second) if len(s.values) < FEWEST_SEEDS]
    if few:
        return Verdict(UNDECIDED, f"{' and '.join(few)} of at least {FEWEST_SEEDS} seeds")
    if not any(2 * sample.learned > len(sample.values) for sample in (first, second)):
        return Verdict(UNDECIDED, f"neither {first.name} nor {second.name} learned: both stay at the baseline")
    return None


def _gain(first: Sample, second: Sample, higher_is_better: bool) -> tuple[float, float]:
    """By how much ``first`` is better, and two standard errors of that difference."""
    sign = 1 if higher_is_better else -1
    return sign * (first.mean - second.mean), ERRORS * math.hypot(first.error, second.error)


def _numbers(first: Sample, second: Sample, gain: float, bound: float, unit: str) -> str:
    word = "better" if gain >= 0 else "worse"
    return f"{first.name} is {abs(gain):.3g} {unit} {word} than {second.name}; two standard errors are {bound:.2g}"
