"""The learning rate of every attention in the runs of evidence: the best of three, each tried at a quarter of the length.

``cosformer reproduce rates`` runs the search; its lines are in docs/results/rates.jsonl, and a test holds the table below to them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cosformer import terminal
from cosformer.lab.paper.claims import LISTOPS, LM, LM_M2, LM_M4, LM_NOPOS, MLM, PATHFINDER, RECALL_16, RECALL_32, SST2
from cosformer.lab.paper.request import Request

SEED = 9  # of the search: none of the seeds that are scored
QUARTER = 4
TRIED: dict[str, tuple[float, ...]] = {
    PATHFINDER: (5e-4, 1e-3, 2e-3),
    LM: (1e-3, 2e-3, 4e-3),
    MLM: (1e-3, 2e-3, 4e-3),
    SST2: (2e-4, 5e-4, 1e-3),
    LISTOPS: (5e-4, 1e-3, 3e-3),
    RECALL_16: (1e-3, 3e-3, 6e-3),
    RECALL_32: (1e-3, 3e-3, 6e-3),
}
# the variants of a recipe train with the rates that were found for it
SAME_AS: dict[str, str] = {LM_M2: LM, LM_M4: LM, LM_NOPOS: LM}

RATES: dict[str, dict[str, float]] = {}


def rate(recipe: str, attention: str) -> float | None:
    """The rate found for this attention; None: not searched, so the recipe's own."""
    return RATES.get(SAME_AS.get(recipe, recipe), {}).get(attention)


def best(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By recipe and attention the rate with the lowest validation loss, of the lines of a search."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for line in lines:
        if line["status"] != "done":
            continue  # a rate at which training diverges is not the best
        pair = (line["scores"]["valid"]["loss"], line["rate"])
        of_recipe = found.setdefault(line["recipe"], {})
        of_recipe[line["attention"]] = min(pair, of_recipe.get(line["attention"], pair))
    return {recipe: {name: pair[1] for name, pair in row.items()} for recipe, row in found.items()}


def show(request: Request, lines: Sequence[dict[str, Any]]) -> None:
    """Print the validation loss at every rate, and the table that belongs into this file; ``write``: the lines, too."""
    from cosformer.lab.paper.summary import write_lines

    if request.write is not None:
        write_lines(lines, request.write / "results" / "rates.jsonl")
    chosen = best(lines)
    for recipe, row in chosen.items():
        table = []
        for attention, at in row.items():
            losses = {x["rate"]: x for x in lines if (x["recipe"], x["attention"]) == (recipe, attention)}
            cells = [_loss(losses.get(value)) for value in TRIED[recipe]]
            table.append([attention, *cells, f"{at:g}"])
        print(
            f"{recipe}, validation loss\n\n{terminal.table(['attention', *map('{:g}'.format, TRIED[recipe]), 'best'], table)}\n"
        )
    print("RATES: dict[str, dict[str, float]] =", chosen)


def _loss(line: Mapping[str, Any] | None) -> str:
    if line is None:
        return "not run"
    return "diverged" if line["status"] != "done" else f"{line['scores']['valid']['loss']:.4f}"
