"""The ledger: each claim of the paper, what our runs say to it, and the verdict. Made from finished runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from cosformer.runs import NOT_RUN, Run, SeedScores
from studies.cosformer2022.claims import CLAIMS, CONTROL, MUST_PASS, Claim, Comparison, Measure, plain_measure
from studies.cosformer2022.verdict import (
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

FORMAT = 2
Key = tuple[str, int]  # of a comparison: its claim's, and its place among the parts
Gates = Mapping[str, Mapping[str, Any]]  # recipe -> {"name", "score"}


def ledger(lines: Sequence[Run], gates: Gates) -> dict[str, Any]:
    """What goes into ledger.json, apart from speed and memory."""
    adjusted = _adjusted(lines, gates)
    return {"format": FORMAT, "claims": [_entry(claim, lines, gates, adjusted) for claim in CLAIMS]}


def by_seed(lines: Sequence[Run], measure: Measure, attention: str) -> dict[int, float]:
    """The attention's score by ``measure`` for each seed that has one."""
    scores = {seed: _score(run, measure, lines) for seed, run in sorted(_runs(lines, measure, attention).items())}
    return {seed: score for seed, score in scores.items() if score is not None}


def seed_scores(lines: Sequence[Run], measure: Measure, attention: str) -> SeedScores:
    """The same without the seeds' numbers, and how many of the runs learned."""
    values, runs = by_seed(lines, measure, attention), _runs(lines, measure, attention)
    learned = sum(runs[seed].learned.get(runs[seed].evaluation, False) for seed in values)
    return SeedScores(attention, tuple(values.values()), learned)


def effect(part: Comparison, lines: Sequence[Run]) -> Effect:
    """Over the seeds that both sides have."""
    first = by_seed(lines, part.measure, part.first)
    second = by_seed(lines, part.against or part.measure, part.second)
    margin = part.measure.margin if part.kind == "on_par" else None
    return paired(first, second, higher_is_better=part.measure.higher_is_better, margin=margin)


def obstacle(recipe: str, lines: Sequence[Run], gates: Gates) -> Verdict | None:
    """Why the runs of ``recipe`` cannot be judged, if so: the gate is missed, or the control does not lose."""
    measure = plain_measure(recipe)
    gate = gates.get(recipe)
    if gate is None:
        return Verdict(NOT_RUN, f"the gate of {recipe} has not been computed")
    for name in MUST_PASS[recipe]:
        found = seed_scores(lines, measure, name)
        if not found.values:
            return Verdict(NOT_RUN, f"no run with {name}")
        if missed := _missed(found, measure, gate, name):
            return missed
    control = control_effect(recipe, lines)
    if control.seeds < SEEDS[False]:
        return Verdict(NOT_RUN, f"the control {CONTROL} has {control.seeds} of {SEEDS[False]} seeds")
    if control.interval[0] <= 0:
        lost = f"{CONTROL}, which cannot attend, does not lose to softmax: the task says nothing about attention"
        return Verdict(NOT_TESTABLE, lost)
    return None


def _missed(found: SeedScores, measure: Measure, gate: Mapping[str, Any], name: str) -> Verdict | None:
    """The verdict where the mean of ``found``, the runs called ``name``, is no better than the gate's score."""
    if (found.mean - gate["score"]) * (1 if measure.higher_is_better else -1) > 0:
        return None
    by = f"{found.mean:.4g} against {gate['score']:.4g} ({gate['name']})"
    return Verdict(NOT_TESTABLE, f"{name} misses the gate: {by}")


def _stopped(claim: Claim, lines: Sequence[Run], gates: Gates) -> Verdict | None:
    """Why nothing can be judged of ``claim``. Of a variant of the gate's recipe (no positions, a longer training)
    cosFormer must beat the gate, too."""
    if stopped := obstacle(claim.gate, lines, gates):
        return stopped
    for measure in dict.fromkeys(part.measure for part in claim.parts if part.measure.recipe != claim.gate):
        found = seed_scores(lines, measure, "cosformer")
        if found.values and (missed := _missed(found, measure, gates[claim.gate], f"cosformer ({measure.recipe})")):
            return missed
    return None


def control_effect(recipe: str, lines: Sequence[Run]) -> Effect:
    """By how much softmax is better than the attention that cannot attend."""
    return effect(Comparison(plain_measure(recipe), "softmax", "better", CONTROL), lines)


def command(claim: Claim) -> str:
    """What runs everything behind a claim, its gate and its control."""
    recipes = dict.fromkeys([*(part.measure.recipe for part in claim.parts), claim.gate])
    names = dict.fromkeys([*attentions(claim), *MUST_PASS[claim.gate], CONTROL])
    return f"python -m studies.cosformer2022 ledger --recipes {','.join(recipes)} --attentions {','.join(names)}"


def attentions(claim: Claim) -> list[str]:
    return list(dict.fromkeys(name for part in claim.parts for name in (part.first, part.second)))


def _adjusted(lines: Sequence[Run], gates: Gates) -> dict[Key, float]:
    """p of every primary comparison that can be judged, by Holm's rule over all of its family."""
    adjusted: dict[Key, float] = {}
    for family in sorted({claim.family for claim in CLAIMS}):
        claims = [claim for claim in CLAIMS if claim.primary and claim.family == family]
        values: dict[Key, float] = {}
        for claim in claims:
            effects = [effect(part, lines) for part in claim.parts]
            judged = _stopped(claim, lines, gates) is None
            values |= {(claim.key, i): x.p for i, x in enumerate(effects) if judged and _enough(claim, x)}
        adjusted |= holm(values, sum(len(claim.parts) for claim in claims))
    return adjusted


def _enough(claim: Claim, found: Effect) -> bool:
    """Whether there are seeds enough to judge the comparison."""
    return found.seeds >= SEEDS[claim.primary] or (claim.family > 1 and found.clear)


def needed(recipe: str, attention: str, seed: int, lines: Sequence[Run], gates: Gates) -> bool:
    """Whether a run that is missing can still change a verdict (protocol.md, "Stops"): its gate is not missed, and of
    the seeds after the third some comparison wants them."""
    mine = [(claim, part) for claim in CLAIMS for part in claim.parts if (recipe, attention) in sides(part)]
    gate = next((c.gate for c in CLAIMS for p in c.parts if recipe in (r for r, _ in sides(p))), recipe)
    stopped = obstacle(gate, lines, gates) if gate in MUST_PASS else None
    if stopped is not None and stopped.outcome == NOT_TESTABLE:
        return False
    open_ones = [not _enough(claim, effect(part, lines)) for claim, part in mine if claim.primary]
    return seed < SEEDS[False] or not open_ones or any(open_ones)


def sides(part: Comparison) -> tuple[tuple[str, str], tuple[str, str]]:
    """Recipe and attention of either side."""
    return (part.measure.recipe, part.first), ((part.against or part.measure).recipe, part.second)


def _entry(claim: Claim, lines: Sequence[Run], gates: Gates, adjusted: Mapping[Key, float]) -> dict[str, Any]:
    stopped = _stopped(claim, lines, gates)
    parts, verdicts = [], []
    for number, part in enumerate(claim.parts):
        found = effect(part, lines)
        p = adjusted.get((claim.key, number))
        verdicts.append(_judge(claim, part, found, p))
        parts.append(_part(part, found, p) | {"outcome": (stopped or verdicts[-1]).outcome})
    verdict = stopped or together(verdicts)
    measure = claim.parts[0].measure
    control = control_effect(claim.gate, lines)
    return {
        "key": claim.key,
        "says": claim.says,
        "where": claim.where,
        "test": claim.test,
        "primary": claim.primary,
        "family": claim.family,
        "recipes": [measure.recipe],
        "unit": measure.unit,
        **vars(verdict),
        "parts": parts,
        "gate": {"recipe": claim.gate, **gates.get(claim.gate, {})},
        "control": _numbers(control) if control.seeds > 1 else {"seeds": control.seeds},
        "rows": [_row(lines, measure, name) for name in (*attentions(claim), CONTROL)],
        "command": command(claim),
    }


def _judge(claim: Claim, part: Comparison, found: Effect, adjusted: float | None) -> Verdict:
    names = tuple(
        name if measure.recipe == claim.gate else f"{name} ({measure.recipe})"
        for name, measure in ((part.first, part.measure), (part.second, part.against or part.measure))
    )
    if not found.seeds:
        return Verdict(NOT_RUN, f"no seed with both {names[0]} and {names[1]}")
    if not _enough(claim, found):
        return Verdict(UNDECIDED, f"{names[0]} and {names[1]} have {found.seeds} of {SEEDS[claim.primary]} seeds")
    return decide(found, found.p if adjusted is None else adjusted, names=(names[0], names[1]), unit=part.measure.unit)


def _part(part: Comparison, found: Effect, adjusted: float | None) -> dict[str, Any]:
    values: dict[str, Any] = {"first": part.first, "kind": part.kind, "second": part.second, "seeds": found.seeds}
    values["first_recipe"], values["second_recipe"] = part.measure.recipe, (part.against or part.measure).recipe
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


def _row(lines: Sequence[Run], measure: Measure, name: str) -> dict[str, Any]:
    found = seed_scores(lines, measure, name)
    row: dict[str, Any] = {"attention": name, "seeds": len(found.values), "learned": found.learned}
    if found.values:
        row["mean"] = _short(found.mean)
        row["values"] = [_short(value) for value in found.values]
    if len(found.values) > 1:
        row["error"] = float(f"{found.error:.2g}")
    return row


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _runs(lines: Sequence[Run], measure: Measure, attention: str) -> dict[int, Run]:
    """By seed; the first of several."""
    return {x.seed: x for x in reversed(lines) if (x.recipe, x.attention) == (measure.recipe, attention)}


def _score(line: Run, measure: Measure, lines: Sequence[Run]) -> float | None:
    """The number of one run; None: it has none."""
    if measure.area:
        return line.extra.get("mean_train_loss") if line.status == "done" else None
    scale = 100.0 if measure.unit == "points" else 1.0
    base, found = _baseline(line, lines), line.scores.get(line.evaluation, {}).get(measure.metric)
    if found is None:
        return None if line.status != "diverged" or base is None else scale * base
    if base is not None and (found < base if measure.higher_is_better else found > base):
        return scale * base
    return scale * found


def _baseline(line: Run, lines: Sequence[Run]) -> float | None:
    """The baseline's score on the same evaluation; a run that diverged has none, but another of its recipe will do."""
    others = (x for x in lines if x.recipe == line.recipe)
    found = (other.baseline.get(other.evaluation) for other in (line, *others))
    return next((base["score"] for base in found if base), None)
