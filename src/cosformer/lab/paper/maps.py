"""Figure 3 and algorithm 2: where the attention of the trained models lies, and the bare cosine matrix."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cosformer import machine, terminal
from cosformer.lab.paper.cells import ATTENTIONS, Cell, recipes_of
from cosformer.lab.paper.request import Request
from cosformer.lab.paper.summary import finished
from cosformer.lab.records import Run
from cosformer.lab.render.frequency import frequency_document, frequency_figures, threshold_frequency

INPUTS = 8  # rows of the validation split
RANDOM, SIZE = 5, 12
THRESHOLDS = (0.0, 0.5, 0.9, 1.0)


def algorithm2(matrices: Sequence[np.ndarray], threshold: float) -> np.ndarray:
    """The printed loops."""
    d = len(matrices[0])
    found = np.zeros((d, d))
    for matrix in matrices:
        for i in range(d):
            index = np.argsort(-matrix[i], kind="stable")
            p = 0.0
            for j in range(d):
                p += matrix[i][index[j]]
                found[i][index[j]] += 1
                if p > threshold:
                    break
    return found / len(matrices)


def show(request: Request, runs: Sequence[Run]) -> None:
    """Algorithm 2 against its printed loops; then, for figure 3, the maps of the trained models."""
    if request.target == "algorithm2":
        _show_algorithm(request)
        return
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
    document = frequency_document(
        weights, **machine.provenance(["reproduce", "figure3", "--scale", request.scale]), recipe=recipe
    )
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
    print(terminal.table(header, rows))
    print("\nPaper (figure 3, no numbers printed): with the re-weighting, attention lies closer to the diagonal.")
    print(f"\nResult: {path}")
    for figure in frequency_figures(document):
        print(f"Drawn: {figure.save(request.out)}")


def run_weights(run: Path, inputs: int = INPUTS) -> list[np.ndarray]:
    """The matrices [N,N] of every layer and head of the run's best model on the first full rows of its validation text."""
    import torch
    import transformers

    from cosformer.experiment import load_experiment
    from cosformer.models.attention_weights import attention_weights
    from cosformer.tasks import build_task
    from cosformer.train import load_model

    transformers.logging.disable_progress_bar()  # for a moment's work
    task = build_task(load_experiment(run))
    model = load_model(run)
    batch = task.eval_batch(task.selection, 0, inputs)
    with torch.no_grad():
        layers = attention_weights(model, batch["input_ids"], batch.get("attention_mask"))
    return [matrix.double().numpy() for layer in layers for row in layer for matrix in row]


def _show_algorithm(request: Request) -> None:
    generator = np.random.default_rng(0)
    matrices = generator.dirichlet(np.full(SIZE, 0.3), size=(RANDOM, SIZE))
    values = []
    for threshold in THRESHOLDS:
        same = np.array_equal(algorithm2(list(matrices), threshold), threshold_frequency(matrices, threshold))
        values.append({"threshold": threshold, "matrices": RANDOM, "size": SIZE, "same": same})
    rows = [[f"{v['threshold']:g}", "the same" if v["same"] else "DIFFERS"] for v in values]
    print(terminal.table(["threshold", "algorithm 2, printed loops against ours"], rows))
    print(f"\nEvery row: {request.write_lines(values)}; `cosformer reproduce figure3` applies it to trained models.")
    if not all(value["same"] for value in values):
        raise ValueError("ours differs from algorithm 2; please report the table above")
