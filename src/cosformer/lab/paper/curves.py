"""Figure 4: training and validation loss of vanilla, cosFormer and no re-weighting, drawn from the runs."""

from collections.abc import Sequence

from cosformer import terminal
from cosformer.lab.paper.cells import ATTENTIONS, recipes_of
from cosformer.lab.paper.ledger import Line
from cosformer.lab.paper.request import Request
from cosformer.lab.paper.verdict import NOT_RUN
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.loss_curves import loss_curves

KINDS = {"training": "train_loss", "validation": "valid_loss"}


def figures(recipe: str, lines: Sequence[Line], attentions: Sequence[str]) -> list[Figure]:
    """The two halves of the figure."""
    return [
        loss_curves(
            {name: [[(s, x) for s, x in line[key]] for line in _of(lines, recipe, name)] for name in attentions},
            name=f"figure4-{kind}",
            title=f"{kind.capitalize()} loss, {recipe}",
        )
        for kind, key in KINDS.items()
    ]


def show(request: Request, lines: Sequence[Line]) -> None:
    """Print where the curves stand, draw them, write their points as JSON lines."""
    (recipe,) = recipes_of("figure4", request.scale)
    names = request.attentions or ATTENTIONS["figure4"]
    rows = []
    for name in names:
        found = [line["valid_loss"] for line in _of(lines, recipe, name) if line["valid_loss"]]
        quarters = [[curve[round(part * (len(curve) - 1))][1] for curve in found] for part in (0, 0.5, 1)]
        cells = [f"{sum(values) / len(values):.3f}" if values else NOT_RUN for values in quarters]
        rows.append([name, *cells, str(len(found))])
    header = ["validation loss", "first evaluation", "half of them", "last", "seeds"]
    print(f"{recipe}\n\n{terminal.table(header, rows)}\n")
    print(
        "Paper (figure 4, no numbers printed): cosFormer falls faster than vanilla and ends comparable or lower; without"
    )
    print("re-weighting it is clearly worse.\n")
    if not any(_of(lines, recipe, name) for name in names):
        return
    kept = ("recipe", "attention", "seed", *KINDS.values())
    request.write_lines({key: line[key] for key in kept} for name in names for line in _of(lines, recipe, name))
    for figure in figures(recipe, lines, names):
        print(f"Drawn: {figure.save(request.out)}")


def _of(lines: Sequence[Line], recipe: str, attention: str) -> list[Line]:
    return [line for line in lines if (line["recipe"], line["attention"]) == (recipe, attention)]
