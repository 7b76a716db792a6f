"""The ledger: each claim of the paper, what our runs say to it, and the verdict. Made from finished runs."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from cosformer.lab.paper.claims import CLAIMS, Claim, Comparison, Measure
from cosformer.lab.paper.verdict import Sample, Verdict, better, on_par, together
from cosformer.lab.records import Run

FORMAT = 1
Line = Run


def ledger(lines: Sequence[Line], claims: Iterable[Claim] = CLAIMS) -> dict[str, Any]:
    """What goes into ledger.json, apart from speed and memory."""
    return {"format": FORMAT, "claims": [_entry(claim, lines) for claim in claims]}


def sample(lines: Sequence[Line], measure: Measure, attention: str) -> Sample:
    """The attention's scores by ``measure``, one for each seed that has all of its recipes."""
    values, learned = [], 0
    for seed in sorted({line.seed for line in lines}):
        found = [_of(lines, recipe, attention, seed) for recipe in measure.recipes]
        scores = [_score(line, measure, lines) for line in found if line is not None]
        if len(scores) == len(found) and None not in scores:
            values.append(sum(score for score in scores if score is not None) / len(scores))
            learned += any(line.learned.get(line.evaluation, False) for line in found if line is not None)
    return Sample(attention, tuple(values), learned)


def judge(part: Comparison, lines: Sequence[Line]) -> Verdict:
    """The verdict on one comparison."""
    first, second = (sample(lines, part.measure, name) for name in (part.first, part.second))
    how = {"higher_is_better": part.measure.higher_is_better, "unit": part.measure.unit}
    if part.kind == "better":
        return better(first, second, **how)
    return on_par(first, second, **how, resolution=part.measure.resolution)


def command(claim: Claim) -> str:
    """What runs everything behind a claim."""
    recipes = dict.fromkeys(recipe for part in claim.parts for recipe in part.measure.recipes)
    return f"cosformer reproduce ledger --recipes {','.join(recipes)} --attentions {','.join(attentions(claim))}"


def attentions(claim: Claim) -> list[str]:
    return list(dict.fromkeys(name for part in claim.parts for name in (part.first, part.second)))


def _entry(claim: Claim, lines: Sequence[Line]) -> dict[str, Any]:
    verdict = together([judge(part, lines) for part in claim.parts])
    measure = claim.parts[0].measure
    rows = []
    for name in attentions(claim):
        found = sample(lines, measure, name)
        row: dict[str, Any] = {"attention": name, "seeds": len(found.values), "learned": found.learned}
        if found.values:
            row["mean"] = float(f"{found.mean:.5g}")
            row["values"] = [float(f"{value:.5g}") for value in found.values]
        if len(found.values) > 1:
            row["error"] = float(f"{found.error:.2g}")
        rows.append(row)
    return {
        "key": claim.key,
        "says": claim.says,
        "where": claim.where,
        "test": claim.test,
        "recipes": list(measure.recipes),
        "unit": measure.unit,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "rows": rows,
        "command": command(claim),
    }


def _of(lines: Sequence[Line], recipe: str, attention: str, seed: int) -> Line | None:
    wanted = (recipe, attention, seed)
    return next((x for x in lines if (x.recipe, x.attention, x.seed) == wanted), None)


def _score(line: Line, measure: Measure, lines: Sequence[Line]) -> float | None:
    """The number of one run; None: it has none."""
    scale = 100.0 if measure.unit == "points" else 1.0
    which = measure.split or line.evaluation
    base = _baseline(line, measure, lines) if measure.floor else None
    found = line.scores.get(which, {}).get(measure.metric)
    if found is None:
        return None if line.status != "diverged" or base is None else scale * base
    if base is not None and (found < base if measure.higher_is_better else found > base):
        return scale * base
    return _early(line) if measure.early else scale * found


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


def _early(line: Line) -> float | None:
    """The mean validation loss over the evaluations of the first half of the updates."""
    half = [loss for step, loss in line.valid_loss if step <= (line.steps or 0) / 2]
    return sum(half) / len(half) if half else None
