"""The ledger: each claim of the paper, what our runs say to it, and the verdict. Made from finished runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cosformer.lab.paper.claims import CLAIMS, CONTROL, MUST_PASS, Claim, Comparison, Measure, plain_measure
from cosformer.lab.paper.verdict import (
    NOT_RUN,
    NOT_TESTABLE,
    SEEDS,
    UNDECIDED,
    Effect,
    Verdict,
    decide,
    holm,
    paired,
    together,
)
from cosformer.lab.records import Run, Sample

FORMAT = 2
Line = Run
Gates = Mapping[str, Mapping[str, Any]]  # recipe -> {"name", "score"}


def ledger(lines: Sequence[Line], gates: Gates, claims: Iterable[Claim] = CLAIMS) -> dict[str, Any]:
    """What goes into ledger.json, apart from speed and memory."""
    claims = list(claims)
    adjusted = _adjusted(claims, lines, gates)
    return {"format": FORMAT, "claims": [_entry(claim, lines, gates, adjusted) for claim in claims]}


def by_seed(lines: Sequence[Line], measure: Measure, attention: str) -> dict[int, float]:
    """The attention's score by ``measure`` for each seed that has all of its recipes."""
    values: dict[int, float] = {}
    for seed in sorted({line.seed for line in lines}):
        found = [_of(lines, recipe, attention, seed) for recipe in measure.recipes]
        scores = [_score(line, measure, lines) for line in found if line is not None]
        known = [score for score in scores if score is not None]
        if len(known) == len(found):
            values[seed] = sum(known) / len(known)
    return values


def sample(lines: Sequence[Line], measure: Measure, attention: str) -> Sample:
    """The same without the seeds' numbers, and how many of the runs learned."""
    values = by_seed(lines, measure, attention)
    runs = [[_of(lines, recipe, attention, seed) for recipe in measure.recipes] for seed in values]
    learned = sum(any(x.learned.get(x.evaluation, False) for x in found if x is not None) for found in runs)
    return Sample(attention, tuple(values.values()), learned)


def effect(part: Comparison, lines: Sequence[Line]) -> Effect:
    """Over the seeds that both sides have."""
    first = by_seed(lines, part.measure, part.first)
    second = by_seed(lines, part.against or part.measure, part.second)
    margin = part.measure.margin if part.kind == "on_par" else None
    return paired(first, second, higher_is_better=part.measure.higher_is_better, margin=margin)


def obstacle(recipe: str, lines: Sequence[Line], gates: Gates) -> Verdict | None:
    """Why nothing can be judged by the runs of ``recipe``, if nothing can: the gate is missed, or the control does not lose."""
    measure = plain_measure(recipe)
    gate = gates.get(recipe)
    if gate is None:
        return Verdict(NOT_RUN, f"the gate of {recipe} has not been computed")
    sign = 1 if measure.higher_is_better else -1
    for name in MUST_PASS[recipe]:
        found = sample(lines, measure, name)
        if not found.values:
            return Verdict(NOT_RUN, f"no run with {name}")
        if sign * (found.mean - gate["score"]) <= 0:
            return Verdict(
                NOT_TESTABLE, f"{name} misses the gate: {found.mean:.4g} against {gate['score']:.4g} ({gate['name']})"
            )
    control = control_effect(recipe, lines)
    if control.seeds < SEEDS[False]:
        return Verdict(NOT_RUN, f"the control {CONTROL} has {control.seeds} of {SEEDS[False]} seeds")
    if control.interval[0] <= 0:
        return Verdict(
            NOT_TESTABLE,
            f"{CONTROL}, which cannot attend, does not lose to softmax: the task says nothing about attention",
        )
    return None


def control_effect(recipe: str, lines: Sequence[Line]) -> Effect:
    """By how much softmax is better than the attention that cannot attend."""
    measure = plain_measure(recipe)
    first, second = (by_seed(lines, measure, name) for name in ("softmax", CONTROL))
    return paired(first, second, higher_is_better=measure.higher_is_better, margin=None)


def command(claim: Claim) -> str:
    """What runs everything behind a claim."""
    names = dict.fromkeys(r for part in claim.parts for m in (part.measure, part.against) if m for r in m.recipes)
    return f"cosformer reproduce ledger --recipes {','.join(names)} --attentions {','.join(attentions(claim))}"


def attentions(claim: Claim) -> list[str]:
    return list(dict.fromkeys(name for part in claim.parts for name in (part.first, part.second)))


def _adjusted(claims: Sequence[Claim], lines: Sequence[Line], gates: Gates) -> dict[str, float]:
    """p of every primary comparison that can be judged, by Holm's rule over all that there are."""
    family = [(_key(claim, i), claim, part) for claim in claims if claim.primary for i, part in enumerate(claim.parts)]
    values = {}
    for key, claim, part in family:
        found = effect(part, lines)
        if found.seeds >= SEEDS[True] and obstacle(claim.gate, lines, gates) is None:
            values[key] = found.p
    return holm(values, len(family))


def _key(claim: Claim, number: int) -> str:
    return f"{claim.key}/{number}"


def _entry(claim: Claim, lines: Sequence[Line], gates: Gates, adjusted: Mapping[str, float]) -> dict[str, Any]:
    stopped = obstacle(claim.gate, lines, gates)
    parts, verdicts = [], []
    for number, part in enumerate(claim.parts):
        found = effect(part, lines)
        verdicts.append(stopped or _judge(claim, part, found, adjusted.get(_key(claim, number))))
        parts.append(_part(part, found, adjusted.get(_key(claim, number))))
    verdict = together(verdicts) if stopped is None else stopped
    measure = claim.parts[0].measure
    control = control_effect(claim.gate, lines)
    return {
        "key": claim.key,
        "says": claim.says,
        "where": claim.where,
        "test": claim.test,
        "primary": claim.primary,
        "recipes": list(measure.recipes),
        "unit": measure.unit,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "parts": parts,
        "gate": {"recipe": claim.gate, **gates.get(claim.gate, {})},
        "control": _numbers(control) if control.seeds > 1 else {"seeds": control.seeds},
        "rows": [_row(lines, measure, name) for name in (*attentions(claim), CONTROL)],
        "command": command(claim),
    }


def _judge(claim: Claim, part: Comparison, found: Effect, adjusted: float | None) -> Verdict:
    names = tuple(
        name if len(measure.recipes) == 1 and measure.recipes[0] == claim.gate else f"{name} ({measure.recipes[0]})"
        for name, measure in ((part.first, part.measure), (part.second, part.against or part.measure))
    )
    if not found.seeds:
        return Verdict(NOT_RUN, f"no seed with both {names[0]} and {names[1]}")
    if found.seeds < SEEDS[claim.primary]:
        return Verdict(UNDECIDED, f"{names[0]} and {names[1]} have {found.seeds} of {SEEDS[claim.primary]} seeds")
    return decide(found, found.p if adjusted is None else adjusted, names=(names[0], names[1]), unit=part.measure.unit)


def _part(part: Comparison, found: Effect, adjusted: float | None) -> dict[str, Any]:
    values: dict[str, Any] = {"first": part.first, "kind": part.kind, "second": part.second, "seeds": found.seeds}
    values["first_recipe"], values["second_recipe"] = part.measure.recipes[0], (part.against or part.measure).recipes[0]
    values["number"] = "mean_train_loss" if part.measure.area else part.measure.metric
    values["margin"] = part.measure.margin if part.kind == "on_par" else None
    if found.seeds > 1:
        values |= _numbers(found)
        values |= {"p": _short(found.p), "p_holm": None if adjusted is None else _short(adjusted)}
    return values


def _numbers(found: Effect) -> dict[str, Any]:
    low, high = found.interval
    numbers = {"mean": found.mean, "low": low, "high": high, "smallest": found.smallest}
    rounded: dict[str, Any] = {key: _short(value) for key, value in numbers.items()}
    return {"seeds": found.seeds, **rounded, "differences": [_short(value) for value in found.differences]}


def _row(lines: Sequence[Line], measure: Measure, name: str) -> dict[str, Any]:
    found = sample(lines, measure, name)
    row: dict[str, Any] = {"attention": name, "seeds": len(found.values), "learned": found.learned}
    if found.values:
        row["mean"] = _short(found.mean)
        row["values"] = [_short(value) for value in found.values]
    if len(found.values) > 1:
        row["error"] = float(f"{found.error:.2g}")
    return row


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _of(lines: Sequence[Line], recipe: str, attention: str, seed: int) -> Line | None:
    wanted = (recipe, attention, seed)
    return next((x for x in lines if (x.recipe, x.attention, x.seed) == wanted), None)


def _score(line: Line, measure: Measure, lines: Sequence[Line]) -> float | None:
    """The number of one run; None: it has none."""
    scale = 100.0 if measure.unit == "points" else 1.0
    which = measure.split or line.evaluation
    base = _baseline(line, measure, lines) if measure.floor else None
    found = line.scores.get(which, {}).get(measure.metric)
    if measure.area:
        return line.extra.get("mean_train_loss") if line.status == "done" else None
    if found is None:
        return None if line.status != "diverged" or base is None else scale * base
    if base is not None and (found < base if measure.higher_is_better else found > base):
        return scale * base
    return scale * found


def _baseline(line: Line, measure: Measure, lines: Sequence[Line]) -> float | None:
    """The baseline's score on the same evaluation; a run that diverged has none, but another of its recipe will do."""
    for other in [line, *(x for x in lines if x.recipe == line.recipe)]:
        which = measure.split or other.evaluation
        found = other.baseline.get(which)
        if found and measure.metric == "word_perplexity":
            # baselines come in nats a token; how many tokens a word has follows from the run's own scores
            scores = other.scores[which]
            return math.exp(found["score"] * math.log(scores["word_perplexity"]) / scores["loss"])
        if found:
            return found["score"]
    return None
