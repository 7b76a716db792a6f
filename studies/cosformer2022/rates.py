"""The learning rate of every attention in the runs of evidence: the best of some, mostly three, each tried for a share
of the length. If the best lies at an end of those tried, the next one beyond is tried as well.

``python -m studies.cosformer2022 rates`` runs the search; its lines are in results/rates.jsonl.
"""

from collections.abc import Iterable, Mapping, Sequence

from cosformer.report.table import Table
from cosformer.runs import NOT_RUN, Run, read_runs, write_runs
from studies.cosformer2022 import RECORDS, Request, claims

FILE = "rates.jsonl"
SEED = 9  # of the search: none of the seeds that are scored
FACTOR, BEYOND = 2, 3  # between rates where the range grows, and how many may be added to those of TRIED
TRIED: dict[str, tuple[float, ...]] = {
    claims.PATHFINDER: (5e-4, 1e-3, 2e-3),
    claims.LM: (2e-3, 4e-3, 8e-3),
    claims.MLM: (2e-3, 4e-3, 8e-3),
    claims.PRETRAIN: (4e-3,),  # a quarter of it is too short to tell rates apart (protocol.md)
    claims.SST2: (2.5e-4, 5e-4, 1e-3),
    claims.LISTOPS: (5e-4, 1e-3, 3e-3),
    claims.RECALL_16: (1e-3, 3e-3, 6e-3),
    claims.RECALL_32: (1e-3, 3e-3, 6e-3),
    claims.PARITY: (2e-3, 4e-3, 8e-3),
    claims.PARITY_LONG: (2e-3, 4e-3, 8e-3),
    claims.PARITY_MLM: (5e-4, 1e-3, 2e-3),
    claims.ARENA_LISTOPS: (5e-4, 1e-3, 2e-3),
    claims.ARENA_TEXT: (5e-4, 1e-3, 2e-3),
    claims.ARENA_IMAGE: (5e-4, 1e-3, 2e-3),
    claims.MQAR[32]: (1e-3, 2e-3, 4e-3),
}
# searched and scored before ranges grew: they stay as they are, so that all attentions have had the same range
CLOSED = (claims.LM, claims.MLM, claims.PRETRAIN, claims.SST2)
# the variants of a recipe train with the rates that were found for it
SAME_AS: dict[str, str] = {
    **dict.fromkeys((claims.LM_LONG, claims.LM_M2, claims.LM_M4, claims.LM_NOPOS), claims.LM),
    claims.ARENA_TEXT_LONG: claims.ARENA_TEXT,
    **dict.fromkeys((claims.MQAR[16], claims.MQAR[64]), claims.MQAR[32]),
}
# of these, language models and recall, the search trains for half of the length, of all others for a quarter
HALF = (claims.PARITY, claims.PARITY_LONG, claims.PARITY_MLM, claims.MQAR[32])


def share(recipe: str) -> int:
    """The search trains for the length divided by this."""
    return 2 if recipe in HALF else 4


def to_try(recipe: str, losses: Mapping[float, float]) -> list[float]:
    """Every rate of one attention's search, as far as it can be known from the validation losses found so far."""
    values = sorted(TRIED.get(recipe, ()))
    if len(values) < 2 or recipe in CLOSED:
        return values
    for _ in range(BEYOND):
        if not losses.keys() >= set(values):
            break
        best_one = min(values, key=lambda value: losses[value])
        if best_one == values[-1]:
            values.append(float(f"{best_one * FACTOR:g}"))
        elif best_one == values[0]:
            values.insert(0, float(f"{best_one / FACTOR:g}"))
        else:
            break
    return values


def _searched(run: Run) -> float:
    """The deciding score: the validation loss, or the test loss of a pre-training without validation data."""
    return run.scores["valid" if "valid" in run.scores else "test"]["loss"]


def losses(runs: Iterable[Run]) -> dict[str, dict[str, dict[float, float]]]:
    """By recipe and attention the validation loss at each rate that was tried; infinite where training diverged."""
    found: dict[str, dict[str, dict[float, float]]] = {}
    for run in runs:
        of_one = found.setdefault(run.recipe, {}).setdefault(run.attention, {})
        of_one[run.extra["rate"]] = _searched(run) if run.status == "done" else float("inf")
    return found


def best(runs: Iterable[Run]) -> dict[str, dict[str, float]]:
    """By recipe and attention the rate with the lowest validation loss, where the search of a run's lines has ended."""
    found: dict[str, dict[str, float]] = {}
    for recipe, row in losses(runs).items():
        for name, of_one in row.items():
            if of_one.keys() >= set(to_try(recipe, of_one)) and min(of_one.values()) < float("inf"):
                found.setdefault(recipe, {})[name] = min(sorted(of_one), key=lambda value: of_one[value])
    return found


def committed() -> list[Run]:
    """The committed lines of the search."""
    path = RECORDS / FILE
    return read_runs([path])[0] if path.exists() else []


RATES = best(committed())  # and what ``learn`` adds


def learn(runs: Iterable[Run]) -> None:
    """Let runs of a search that ended on this machine count, too."""
    for recipe, row in best(runs).items():
        RATES.setdefault(recipe, {}).update(row)


def rate(recipe: str, attention: str) -> float | None:
    """The rate found for this attention; None: not searched, so the recipe's own."""
    recipe = SAME_AS.get(recipe, recipe)
    only = TRIED.get(recipe, ())
    return RATES.get(recipe, {}).get(attention, only[0] if len(only) == 1 else None)


def waits(recipe: str, attention: str) -> bool:
    """Whether a scored run must wait, because its rate is to be searched and has not been."""
    return SAME_AS.get(recipe, recipe) in TRIED and rate(recipe, attention) is None


def show(request: Request, runs: Sequence[Run]) -> None:
    """Print the validation loss at every rate; ``write``: keep the runs."""
    if request.write is not None:
        write_runs(request.write / "results" / FILE, runs)
    chosen = best(runs)
    for recipe, row in losses(runs).items():
        tried = sorted({value for of_one in row.values() for value in of_one})
        rows = []
        for name, of_one in row.items():
            at = chosen.get(recipe, {}).get(name)
            known = [value for value in tried if value in of_one]
            end = at is not None and len(known) > 1 and at in (known[0], known[-1])
            said = "searching" if at is None else f"{at:g}, at the end of its range" if end else f"{at:g}"
            rows.append([name, *(_loss(of_one.get(value)) for value in tried), said])
        header = ["attention", *(f"{value:g}" for value in tried), "best"]
        print(Table(f"{recipe}, validation loss by rate", header, rows).text + "\n")


def _loss(value: float | None) -> str:
    if value is None:
        return NOT_RUN
    return "diverged" if value == float("inf") else f"{value:.4f}"
