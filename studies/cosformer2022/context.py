"""The value of context: the same bytes of the test split predicted from short and from longer contexts."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cosformer.experiment import load_experiment
from cosformer.report.table import Table
from studies.cosformer2022 import Request, read_lines, write_lines
from studies.cosformer2022.cells import ledger_cells
from studies.cosformer2022.claims import LM, LM_LONG
from studies.cosformer2022.state import finished

FILE = "context.jsonl"
SHORTEST = 4
SCORED = 1 << 17  # tokens, the first of the test split


def contexts(length: int) -> list[int]:
    """4, 8, ... up to half of a row: with context C each token has C to 2C - 1 before it."""
    return [SHORTEST << i for i in range(length.bit_length()) if SHORTEST << i <= length // 2]


def losses(run: Path, scored: int = SCORED) -> dict[int, float]:
    """Context -> nats a token of the run's last weights, over the same tokens for every context."""
    from cosformer.tasks import build_task
    from cosformer.train import SCORED_WEIGHTS, load_model, scores_of

    experiment = load_experiment(run)
    model = load_model(run, SCORED_WEIGHTS)
    found = {}
    for context in contexts(experiment.data.length or 0):
        window = 2 * context
        data = dataclasses.replace(experiment.data, length=window, eval_rows=scored // window, full_test=False)
        task = build_task(dataclasses.replace(experiment, data=data))
        rows = experiment.train.eval_batch * (experiment.data.length or 0) // window
        found[context] = scores_of(task, f"test@{context}", model, rows)["loss"]
    return found


def show(request: Request, runs: object) -> None:
    """Score the ledger's language models in ``runs`` and print the table; ``write``: into results/context.jsonl."""
    values = []
    for cell in ledger_cells(request.seeds):
        chosen = request.attentions is None or cell.attention in request.attentions
        if cell.recipe in (LM, LM_LONG) and chosen and (run := finished(cell, request.runs)) is not None:
            by_context = {str(c): float(f"{value:.6g}") for c, value in losses(run).items()}
            values.append({"recipe": cell.recipe, "attention": cell.attention, "seed": cell.seed, "loss": by_context})
    print(
        table(values).text
        if values
        else f"no finished run of {LM} in {request.runs}; `python -m studies.cosformer2022 ledger`"
    )
    if request.write is not None and values:
        folder = request.write / "results"
        new = {_model(value) for value in values}  # what was scored before stays, where its weights are not kept
        write_lines(folder / FILE, [*(value for value in read(folder) if _model(value) not in new), *values])


def _model(value: dict[str, Any]) -> tuple[str, str, int]:
    return value["recipe"], value["attention"], value["seed"]


def read(folder: Path) -> list[dict[str, Any]]:
    """What ``show`` wrote into ``folder``; nothing before it has."""
    return read_lines(folder / FILE)


def table(values: Sequence[dict[str, Any]]) -> Table:
    """Means over seeds by recipe and attention; the best context, and how much worse the longest is by seed."""
    places = list(values[0]["loss"]) if values else []
    words = {place: f"{place} to {2 * int(place) - 1}" for place in places}
    rows = []
    for model in dict.fromkeys((value["recipe"], value["attention"]) for value in values):
        of_name = [value["loss"] for value in values if (value["recipe"], value["attention"]) == model]
        means = {place: statistics.fmean(loss[place] for loss in of_name) for place in places}
        best = min(places, key=lambda place: means[place])
        costs = ", ".join(f"{loss[places[-1]] - loss[best]:+.4f}" for loss in of_name)
        rows.append([*model, *(f"{mean:.4f}" for mean in means.values()), words[best], costs])
    return Table("", ["recipe", "attention", *words.values(), "best with", "longest against best, by seed"], rows)
