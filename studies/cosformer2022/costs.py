"""What a run will take, before any like it has been run: predicted from a few updates, in processor time."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from cosformer.experiment import Experiment
from cosformer.report.table import Table
from studies.cosformer2022 import Request, read_lines, write_lines
from studies.cosformer2022.cells import ledger_cells

FILE = "costs.jsonl"
UPDATES = 3  # at short, middling and long rows


def show(request: Request, lines: object) -> None:
    """Time the recipes and attentions that have no committed run and print what a run will take; ``write``: keep it."""
    import torch

    torch.set_num_threads(1)
    ran = {line["recipe"] for line in read_lines(request.records / "runs.jsonl")}
    found = []
    for cell in ledger_cells(1):
        if cell.recipe not in ran and (request.attentions is None or cell.attention in request.attentions):
            seconds = round(predicted(cell.experiment()))
            found.append({"recipe": cell.recipe, "attention": cell.attention, "predicted_seconds": seconds})
    rows = [[line["recipe"], line["attention"], f"{line['predicted_seconds'] / 60:.1f}"] for line in found]
    print(Table("", ["recipe", "attention", "minutes of one core, predicted"], rows).text)
    if request.write is not None:
        write_lines(request.write / "results" / FILE, found)


def read(folder: Path) -> dict[tuple[str, str], float]:
    """Predicted seconds by recipe and attention, as ``show`` wrote them into ``folder``."""
    return {(line["recipe"], line["attention"]): line["predicted_seconds"] for line in read_lines(folder / FILE)}


def predicted(experiment: Experiment) -> float:
    """Seconds of one core: of the updates, and of every evaluation on the way and at the end."""
    import torch

    from cosformer.tasks import build_task

    task: Any = build_task(experiment)
    model: Any = task.head(task.config(experiment.model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    settings = experiment.train
    lengths = task.train_lengths() if settings.group_by_length else np.arange(task.train_rows)
    order = np.argsort(lengths, kind="stable")

    def update(share: float) -> float:
        first = int(share * (len(order) - settings.batch))
        batch = task.collate([task.train_row(int(i), 0) for i in order[first : first + settings.batch]])
        start = time.process_time()
        model(**batch, **({"use_cache": False} if model.config.is_decoder else {})).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - start

    update(0.5)
    each = sum(update((i + 0.5) / UPDATES) for i in range(UPDATES)) / UPDATES
    model.eval()
    total = settings.steps * each
    for name in task.final:
        size = task.eval_size(name)
        rows = min(size, settings.eval_batch)
        batch = task.eval_batch(name, size // 2, size // 2 + rows)
        start = time.process_time()
        with torch.no_grad():
            task.sums(model, batch)
        evaluations = 1 + (settings.steps // settings.eval_every) * (name == task.selection)
        total += (time.process_time() - start) * size / rows * evaluations
    return total
