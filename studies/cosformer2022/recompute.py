"""Recompute every interval, p value and verdict of ledger.json from runs.jsonl and gates.jsonl, with scipy and nothing
of the package.

    python studies/cosformer2022/recompute.py studies/cosformer2022/results

Prints one line a comparison; ends with 1 and names what differs if anything does.
"""

import json
import math
import statistics
import sys
from pathlib import Path

from scipy import stats

ALPHA, FEWEST = 0.05, {True: 5, False: 3}
CLEAR = 0.005  # of the second family: a p at which three seeds are enough
ONLY_SOFTMAX = ("evidence-recall-", "evidence-mqar-")  # recipes whose gate softmax alone must pass


def scores(runs, recipe, attention, number="score"):
    """Score by seed; nats, or percent. Below the baseline counts as the baseline, and so does a run that diverged."""
    of_recipe = [run for run in runs if run["recipe"] == recipe]
    found = {}
    for run in (run for run in of_recipe if run["attention"] == attention):
        if number == "mean_train_loss":
            if run["status"] == "done":
                found[run["seed"]] = run["mean_train_loss"]
            continue
        metric = "accuracy" if any("accuracy" in s for other in of_recipe for s in other["scores"].values()) else "loss"
        scale, sign = (100, 1) if metric == "accuracy" else (1, -1)
        which = "test" if any("test" in other["scores"] for other in of_recipe) else "valid"
        base = next(other["baseline"][which]["score"] for other in of_recipe if which in other["baseline"])
        value = run["scores"].get(which, {}).get(metric, base)
        found[run["seed"]] = scale * (sign * max(sign * value, sign * base))
    return found


def test(first, second, sign, null=0.0):
    """Mean, interval and p of the paired differences; None below two seeds."""
    differences = [sign * (first[seed] - second[seed]) for seed in sorted(first.keys() & second.keys())]
    if len(differences) < 2:
        return {"seeds": len(differences)}
    mean, freedom = statistics.fmean(differences), len(differences) - 1
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    low, high = (mean + side * stats.t.ppf(1 - ALPHA / 2, freedom) * error for side in (-1, 1))
    p = stats.ttest_1samp(differences, null).pvalue if error else float(mean == null)
    smallest = (stats.t.ppf(1 - ALPHA / 2, freedom) + stats.t.ppf(0.8, freedom)) * error
    found = {"seeds": len(differences), "mean": mean, "low": low, "high": high}
    return found | {"p": float(p), "null": null, "smallest": smallest}


def stopped(runs, gates, recipe, sign):
    """The outcome where the gate or the control forbids a verdict, otherwise None."""
    if recipe not in gates:
        return "not run"
    for name in ["softmax"] if recipe.startswith(ONLY_SOFTMAX) else ["softmax", "cosformer"]:
        values = scores(runs, recipe, name).values()
        if not values:
            return "not run"
        if sign * (statistics.fmean(values) - gates[recipe]["score"]) <= 0:
            return "not testable at this size"
    control = test(scores(runs, recipe, "softmax"), scores(runs, recipe, "uniform"), sign)
    if control["seeds"] < FEWEST[False]:
        return "not run"
    return None if control["low"] > 0 else "not testable at this size"


def weak_variant(runs, gates, claim, sign):
    """Runs of another recipe than the gate's are judged only where cosFormer beats that gate with them, too."""
    gate = claim["gate"]["recipe"]
    for part in claim["parts"]:
        values = scores(runs, part["first_recipe"], "cosformer", part["number"]).values()
        if part["first_recipe"] != gate and values and sign * (statistics.fmean(values) - gates[gate]["score"]) <= 0:
            return "not testable at this size"
    return None


def enough(claim, found):
    """Whether there are seeds enough to judge a comparison."""
    clear = claim["family"] > 1 and found["seeds"] >= FEWEST[False] and found["p"] <= CLEAR
    return clear or found["seeds"] >= FEWEST[claim["primary"]]


def outcome(claim, found, p):
    if not found["seeds"]:
        return "not run"
    if not enough(claim, found) or p > ALPHA:
        return "undecided"
    return "holds here" if found["mean"] > found["null"] else "does not hold here"


def together(words):
    if all(word == "not run" for word in words):
        return "not run"
    if "does not hold here" in words:
        return "does not hold here"
    return "holds here" if set(words) == {"holds here"} else "undecided"


def recompute(runs, gates, claims):
    """(key, outcome, the tests of its parts) of every claim that runs decide."""
    tested, primary = {}, {}
    for claim in claims:
        sign = 1 if claim["unit"] == "points" else -1
        stop = stopped(runs, gates, claim["gate"]["recipe"], sign) or weak_variant(runs, gates, claim, sign)
        for place, part in enumerate(claim["parts"]):
            sides = [scores(runs, part[f"{side}_recipe"], part[side], part["number"]) for side in ("first", "second")]
            found = test(*sides, sign, -(part["margin"] or 0.0))
            tested[claim["key"], place] = found
            if claim["primary"] and stop is None and enough(claim, found):
                primary.setdefault(claim["family"], {})[claim["key"], place] = found["p"]
        tested[claim["key"]] = stop
    adjusted = {}
    for family, values in primary.items():
        size = sum(len(c["parts"]) for c in claims if c["primary"] and c["family"] == family)
        floor = 0.0
        for rank, (key, p) in enumerate(sorted(values.items(), key=lambda item: item[1])):
            floor = adjusted[key] = max(floor, min(1.0, (size - rank) * p))
    for claim in claims:
        parts = [tested[claim["key"], place] for place in range(len(claim["parts"]))]
        words = [
            outcome(claim, part, adjusted.get((claim["key"], place), part.get("p"))) for place, part in enumerate(parts)
        ]
        stop = tested[claim["key"]]
        parts = [part | {"outcome": stop or word} for part, word in zip(parts, words, strict=True)]
        yield claim, stop or together(words), parts


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main(folder):
    runs, gates = (read_lines(folder / name) for name in ("runs.jsonl", "gates.jsonl"))
    gates = {gate["recipe"]: gate for gate in gates}
    entries = json.loads((folder / "ledger.json").read_text(encoding="utf-8"))["claims"]
    wrong = []
    for claim, verdict, parts in recompute(runs, gates, [entry for entry in entries if "parts" in entry]):
        print(f"{claim['key']:<24} {verdict}")
        if verdict != claim["outcome"]:
            wrong.append(f"{claim['key']}: {claim['outcome']!r} in ledger.json, {verdict!r} from the runs")
        for ours, theirs in zip(parts, claim["parts"], strict=True):
            if ours["outcome"] != theirs["outcome"]:
                wrong.append(
                    f"{claim['key']}: a part {theirs['outcome']!r} in ledger.json, {ours['outcome']!r} from the runs"
                )
            for name in ("seeds", "mean", "low", "high", "p", "smallest"):
                said = theirs.get(name, math.nan)
                if name in ours and not math.isclose(ours[name], said, rel_tol=2e-4, abs_tol=1e-9):
                    wrong.append(f"{claim['key']}: {name} {said} in ledger.json, {ours[name]} from the runs")
    print("\n".join(wrong) or "All agree.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
