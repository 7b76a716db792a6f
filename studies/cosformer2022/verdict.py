"""The rule by which a claim is judged, fixed before the runs: paired differences over seeds (protocol.md)."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cosformer.runs import NOT_RUN

HOLDS, FAILS, UNDECIDED = "holds here", "does not hold here", "undecided"
NOT_TESTABLE = "not testable at this size"
ALPHA = 0.05  # of both sides together, and over all primary claims
POWER = 0.8  # with which the smallest effect of the power statement would have been shown
SEEDS = {True: 5, False: 3}  # at least, of a primary comparison and of any other
CLEAR = 0.005  # a p value at which the other seeds are not run (second part)


@dataclass(frozen=True)
class Verdict:
    """``outcome`` is one of the words above; ``reason`` says it in numbers."""

    outcome: str
    reason: str


@dataclass(frozen=True)
class Effect:
    """By how much the first is better than the second, seed by seed, and what the mean is compared with: 0 ("better"),
    or minus the margin ("on par")."""

    differences: tuple[float, ...]
    null: float = 0.0

    @property
    def seeds(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def error(self) -> float:
        return statistics.stdev(self.differences) / math.sqrt(self.seeds)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % t interval of the mean."""
        reach = t_quantile(1 - ALPHA / 2, self.seeds - 1) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def p(self) -> float:
        """Two-sided, of the mean being ``null``. At most ALPHA exactly where ``null`` lies outside the interval."""
        distance = self.mean - self.null
        if self.error == 0:
            return 0.0 if distance else 1.0
        return 2 * (1 - t_cdf(abs(distance) / self.error, self.seeds - 1))

    @property
    def clear(self) -> bool:
        """Whether the seeds so far decide it without the others."""
        return self.seeds >= SEEDS[False] and self.p <= CLEAR

    @property
    def smallest(self) -> float:
        """The power statement: the true distance from ``null`` that four of five such sets of runs would have shown."""
        freedom = self.seeds - 1
        return (t_quantile(1 - ALPHA / 2, freedom) + t_quantile(POWER, freedom)) * self.error


def paired(
    first: Mapping[int, float], second: Mapping[int, float], *, higher_is_better: bool, margin: float | None
) -> Effect:
    """The effect over the seeds that both have; ``margin``: of "on par", None for "better"."""
    sign = 1 if higher_is_better else -1
    both = sorted(first.keys() & second.keys())
    return Effect(tuple(sign * (first[seed] - second[seed]) for seed in both), 0.0 if margin is None else -margin)


def holm(values: Mapping[Any, float], family: int) -> dict[Any, float]:
    """p values adjusted by Holm's rule in a family of that many, those without runs counted as 1."""
    if len(values) > family:
        raise ValueError(f"{len(values)} p values in a family of {family}")
    adjusted, floor = {}, 0.0
    for rank, (key, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        floor = max(floor, min(1.0, (family - rank) * p))
        adjusted[key] = floor
    return adjusted


def decide(effect: Effect, p: float, *, names: tuple[str, str], unit: str) -> Verdict:
    """The verdict on one comparison; ``p`` is the effect's own, or the adjusted one of a primary claim."""
    low, high = effect.interval
    text = (
        f"{names[0]} against {names[1]}: {effect.mean:+.3g} {unit}, 95 % interval {low:+.2g} to {high:+.2g}, p = "
        f"{p:.2g}"
    )
    if effect.null:
        text += f", margin {-effect.null:g}"
    if p > ALPHA:
        return Verdict(UNDECIDED, f"{text}; they would have shown {effect.smallest:.2g}")
    return Verdict(HOLDS if effect.mean > effect.null else FAILS, text)


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """A claim of several parts: fails with any part, holds with all of them, is not run while none of them is."""
    outcomes = [verdict.outcome for verdict in verdicts]
    reason = "; ".join(dict.fromkeys(verdict.reason for verdict in verdicts))
    if not outcomes or all(outcome == NOT_RUN for outcome in outcomes):
        return Verdict(NOT_RUN, reason)
    if FAILS in outcomes:
        return Verdict(FAILS, reason)
    return Verdict(HOLDS if set(outcomes) == {HOLDS} else UNDECIDED, reason)


# --- Student's t distribution: what the rule needs of it, without a library for statistics


def t_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for ``freedom`` degrees of freedom by closed sums (Abramowitz and Stegun 26.7.3-4)."""
    if math.isinf(t):
        return 0.0 if t < 0 else 1.0
    angle = math.atan2(abs(t), math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = sine * total
    if odd:
        inside = 2 / math.pi * (angle + (inside if freedom > 1 else 0.0))
    return (1 + inside) / 2 if t >= 0 else (1 - inside) / 2


def t_quantile(share: float, freedom: int) -> float:
    """The t below which ``share`` of the distribution lies, by halving."""
    if not 0 < share < 1:
        raise ValueError(f"share={share}; it lies between 0 and 1")
    low, high = -1.0, 1.0
    while t_cdf(low, freedom) > share:
        low *= 2
    while t_cdf(high, freedom) < share:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < share else (low, middle)
    return (low + high) / 2
