"""Figure 4: training and validation loss of vanilla, cosFormer and no re-weighting, drawn from the runs."""

from collections.abc import Sequence

from cosformer.lab.paper.cells import ATTENTIONS, recipes_of
from cosformer.lab.paper.request import Request
from cosformer.lab.records import NOT_RUN, Run
from cosformer.lab.render.loss_curves import loss_curves
from cosformer.lab.render.table import Table


def show(request: Request, runs: Sequence[Run]) -> None:
    """Print where the curves stand, draw them, write their points as JSON lines."""
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
        "Paper (figure 4, no numbers printed): cosFormer falls faster than vanilla and ends comparable or lower; without"
        "\nre-weighting it is clearly worse.\n"
    )
    if not chosen:
        return
    kept = ("recipe", "attention", "seed", "train_loss", "valid_loss")
    request.write_lines({key: run.line()[key] for key in kept} for run in chosen)
    for figure in loss_curves(chosen, names):
        print(f"Drawn: {figure.save(request.out)}")
