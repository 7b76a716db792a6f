"""The paper's figures 1, 3 and 4: drawn from runs and speeds, with the numbers in them printed and written."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cosformer.machine import provenance
from cosformer.report.charts import loss_curves
from cosformer.report.figure import Figure
from cosformer.report.table import Table
from cosformer.runs import NOT_RUN, Run
from studies.cosformer2022 import PROGRAM, Request, drawings
from studies.cosformer2022.cells import ATTENTIONS, Cell, recipes_of
from studies.cosformer2022.frequency import frequency_document, frequency_figures
from studies.cosformer2022.state import finished, task_and_model
from studies.cosformer2022.tables import speeds_of

INPUTS = 8  # rows of the validation split, for figure 3


def show_figure1(request: Request, runs: Sequence[Run]) -> None:
    """Score against speed, with the memory as the area of a circle."""
    speeds = speeds_of(request)
    chosen = [run for run in runs if run.recipe in recipes_of("figure1", request.scale)]
    ours = drawings.our_trade_off(chosen, speeds) if speeds else None
    if ours is None:
        print(f"Figure 1, ours: {NOT_RUN}; it needs runs of table 4 and the speeds of table 5")
    circles = {
        "paper": drawings.paper_trade_offs(),
        "ours": drawings.our_trade_offs(chosen, speeds) if speeds else [],
    }
    values = [{"whose": whose, **vars(x)} for whose, items in circles.items() for x in items]
    print(f"Every circle: {request.write_lines(values)}")
    for figure in filter(None, (drawings.paper_trade_off(), ours)):
        print(f"Drawn: {figure.save(request.out)}")


def show_figure3(request: Request, runs: Sequence[Run]) -> None:
    """Where the attention of the trained models lies, by algorithm 2, and the bare cosine matrix."""
    (recipe,) = recipes_of("figure3", request.scale)
    weights: dict[str, list[np.ndarray]] = {}
    for name in request.attentions or ATTENTIONS["figure3"]:
        cell = Cell(recipe, name, 0)
        run = finished(cell, request.runs)
        if run is None:
            print(f"{name}: not run ({request.runs / cell.name} holds no finished run of {recipe})")
            continue
        try:
            weights[name] = run_weights(run)
        except (FileNotFoundError, ValueError) as error:
            print(f"skipped: {error}", file=sys.stderr)
    if not weights:
        return
    document = frequency_document(weights, **provenance(["figure3", "--scale", request.scale], PROGRAM), recipe=recipe)
    path = request.out / "figure3.json"
    path.write_text(json.dumps(document) + "\n", encoding="utf-8")
    request.write_lines(
        {key: panel[key] for key in ("attention", "matrices", "distance", "counts")} for panel in document["panels"]
    )
    half, most = (document["thresholds"].index(share) for share in (0.5, 0.9))
    rows = [
        [p["attention"], *(f"{x:.1f}" for x in (p["counts"][half], p["counts"][most], p["distance"]))]
        for p in document["panels"]
    ]
    size, count = document["size"], document["panels"][0]["matrices"]
    print(
        f"{recipe}, seed 0: {count} matrices of each model (layers, heads and {INPUTS} rows of its validation text)\n"
    )
    header = [f"keys of {size} that hold", "half of the attention", "90 % of it", "mean distance of it"]
    print(Table("", header, rows).text)
    print("\nPaper (figure 3, no numbers printed): with the re-weighting, attention lies closer to the diagonal.")
    print(f"\nResult: {path}")
    for figure in frequency_figures(document):
        print(f"Drawn: {figure.save(request.out)}")


def run_weights(run: Path, inputs: int = INPUTS) -> list[np.ndarray]:
    """The matrices [N,N] of every layer and head of the run's best model on full rows of validation text."""
    import torch

    from cosformer.models.attention_weights import attention_weights

    task, model = task_and_model(run)
    batch = task.eval_batch(task.selection, 0, inputs)
    with torch.no_grad():
        layers = attention_weights(model, batch["input_ids"], batch.get("attention_mask"))
    return [matrix.double().numpy() for layer in layers for row in layer for matrix in row]


def show_figure4(request: Request, runs: Sequence[Run]) -> None:
    """Loss curves: print where the curves stand, draw them, write their points as JSON lines."""
    (recipe,) = recipes_of("figure4", request.scale)
    names = request.attentions or ATTENTIONS["figure4"]
    chosen = [run for name in names for run in runs if (run.recipe, run.attention) == (recipe, name)]
    rows = []
    for name in names:
        found = [run.valid_loss for run in chosen if run.attention == name and run.valid_loss]
        quarters = [[curve[round(part * (len(curve) - 1))][1] for curve in found] for part in (0, 0.5, 1)]
        cells = [f"{sum(values) / len(values):.3f}" if values else NOT_RUN for values in quarters]
        rows.append([name, *cells, str(len(found))])
    header = ["validation loss", "first evaluation", "half of them", "last", "seeds"]
    print(f"{Table(recipe, header, rows).text}\n")
    print(
        "Paper (figure 4, no numbers printed): cosFormer falls faster than vanilla and ends comparable or lower; "
        "without\nre-weighting it is clearly worse.\n"
    )
    if not chosen:
        return
    kept = ("recipe", "attention", "seed", "train_loss", "valid_loss")
    request.write_lines({key: run.line()[key] for key in kept} for run in chosen)
    for figure in figure4(chosen, names):
        print(f"Drawn: {figure.save(request.out)}")


def figure4(runs: Sequence[Run], names: Sequence[str]) -> list[Figure]:
    """Training and validation loss."""
    return [replace(figure, name=figure.name.replace("loss", "figure4")) for figure in loss_curves(runs, names)]
