"""The learning rate of every attention in the runs of evidence: the best of some, mostly three, each tried at a quarter
of the length.

``python -m studies.cosformer2022 rates`` runs the search; its lines are in results/rates.jsonl, and a test holds the
table below to them.
"""

from collections.abc import Iterable, Sequence

from cosformer.report.table import Table
from cosformer.runs import NOT_RUN, Run, write_runs
from studies.cosformer2022 import Request
from studies.cosformer2022.claims import (
    LISTOPS,
    LM,
    LM_LONG,
    LM_M2,
    LM_M4,
    LM_NOPOS,
    MLM,
    PATHFINDER,
    PRETRAIN,
    RECALL_16,
    RECALL_32,
    SST2,
)

SEED = 9  # of the search: none of the seeds that are scored
QUARTER = 4
TRIED: dict[str, tuple[float, ...]] = {
    PATHFINDER: (5e-4, 1e-3, 2e-3),
    LM: (2e-3, 4e-3, 8e-3),
    MLM: (2e-3, 4e-3, 8e-3),
    PRETRAIN: (4e-3,),  # a quarter of it is too short to tell rates apart (protocol.md)
    SST2: (2.5e-4, 5e-4, 1e-3),
    LISTOPS: (5e-4, 1e-3, 3e-3),
    RECALL_16: (1e-3, 3e-3, 6e-3),
    RECALL_32: (1e-3, 3e-3, 6e-3),
}
# the variants of a recipe train with the rates that were found for it
SAME_AS: dict[str, str] = {LM_LONG: LM, LM_M2: LM, LM_M4: LM, LM_NOPOS: LM}

RATES: dict[str, dict[str, float]] = {
    LM: {
        "cosformer": 0.004,
        "identity": 0.002,
        "leaky_relu": 0.004,
        "linear": 0.008,
        "relu": 0.008,
        "softmax": 0.004,
        "uniform": 0.008,
    },
    MLM: {
        "cosformer": 0.002,
        "identity": 0.002,
        "leaky_relu": 0.002,
        "relu": 0.002,
        "softmax": 0.002,
        "uniform": 0.002,
    },
    PRETRAIN: {"cosformer": 0.004, "softmax": 0.004, "uniform": 0.004},
    SST2: {"cosformer": 0.001, "softmax": 0.001, "uniform": 0.001},
    PATHFINDER: {"cosformer": 0.002, "relu": 0.001, "softmax": 0.002, "uniform": 0.002},
}


def rate(recipe: str, attention: str) -> float | None:
    """The rate found for this attention; None: not searched, so the recipe's own."""
    return RATES.get(SAME_AS.get(recipe, recipe), {}).get(attention)


def waits(recipe: str, attention: str) -> bool:
    """Whether a scored run must wait, because its rate is to be searched and has not been."""
    return SAME_AS.get(recipe, recipe) in TRIED and rate(recipe, attention) is None


def best(runs: Iterable[Run]) -> dict[str, dict[str, float]]:
    """By recipe and attention the rate with the lowest validation loss, of the runs of a search."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for run in runs:
        if run.status != "done":
            continue  # a rate at which training diverges is not the best
        pair = (_searched(run), run.extra["rate"])
        of_recipe = found.setdefault(run.recipe, {})
        of_recipe[run.attention] = min(pair, of_recipe.get(run.attention, pair))
    return {recipe: {name: pair[1] for name, pair in row.items()} for recipe, row in found.items()}


def show(request: Request, runs: Sequence[Run]) -> None:
    """Print the validation loss at every rate, and the table that belongs into this file; ``write``: the runs, too."""
    if request.write is not None:
        write_runs(request.write / "results" / "rates.jsonl", runs)
    chosen = best(runs)
    for recipe, row in chosen.items():
        rows = []
        for attention, at in row.items():
            tried = {x.extra["rate"]: x for x in runs if (x.recipe, x.attention) == (recipe, attention)}
            rows.append([attention, *(_loss(tried.get(value)) for value in TRIED[recipe]), f"{at:g}"])
        header = ["attention", *(f"{value:g}" for value in TRIED[recipe]), "best"]
        print(Table(f"{recipe}, validation loss by rate", header, rows).text + "\n")
    print("RATES: dict[str, dict[str, float]] =", chosen)


def _loss(run: Run | None) -> str:
    if run is None:
        return NOT_RUN
    return "diverged" if run.status != "done" else f"{_searched(run):.4f}"


def _searched(run: Run) -> float:
    """The deciding score: the validation loss, or the test loss of a pre-training without validation data."""
    return run.scores["valid" if "valid" in run.scores else "test"]["loss"]
