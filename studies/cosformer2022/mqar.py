"""Recall of 4 to 64 pairs against the size of what a model keeps of the past."""

from collections.abc import Sequence

from cosformer.report.figure import Figure, canvas, styles, svg
from cosformer.report.table import Table
from cosformer.runs import NOT_RUN, Run
from studies.cosformer2022.blocks import BLOCKS
from studies.cosformer2022.claims import CONTROL, MQAR, accuracy
from studies.cosformer2022.ledger import seed_scores
from studies.cosformer2022.variants import attentions_of

HEADS, LAYERS, LENGTH = 2, 2, 256  # of the recipes
PAIRS = (4, 8, 16, 32, 64)
NAMES = tuple(name for name in BLOCKS["M"][MQAR[16]] if name != CONTROL)
# numbers that one head of a layer keeps: every key and value, or a sum over them of fixed size
_KEPT = {
    "softmax": lambda head: 2 * head * LENGTH,
    "cosformer": lambda head: 2 * head * (head + 1),  # a cosine and a sine of each feature
    "linear": lambda head: head * (head + 1),
    "multiscale": lambda head: head * (head + 1),
}


def state_size(name: str, head: int) -> int:
    """Numbers that the whole model keeps of a row of 256 tokens, with heads of that many channels."""
    turns = attentions_of(name)
    return HEADS * sum(_KEPT[turns[layer % len(turns)]](head) for layer in range(LAYERS))


def picture(lines: Sequence[Run]) -> Figure | None:
    """Accuracy over all pairs; None where nothing was run."""
    points = {
        name: [(state_size(name, head), seed_scores(lines, accuracy(recipe), name)) for head, recipe in MQAR.items()]
        for name in NAMES
    }
    known = {name: [(x, y.mean) for x, y in row if y.values] for name, row in points.items()}
    known = {name: row for name, row in known.items() if row}
    if not known:
        return None
    title = "Recall of 4 to 64 pairs"
    alt = f"{title}: accuracy against the numbers that a model keeps of the past, for {', '.join(known)}."
    looks = styles(list(known))
    with canvas(520, 340) as drawn:
        axes = drawn.subplots()
        for name, row in known.items():
            colour, dashes = looks[name]
            axes.plot(*zip(*row, strict=True), "o", color=colour, linestyle=(0, dashes) if dashes else "-", label=name)
        axes.set(xscale="log", ylim=(0, 103), xlabel="numbers kept of a row of 256 tokens", ylabel="accuracy (%)")
        axes.set_title(title, loc="left", weight="bold")
        axes.legend(frameon=False, fontsize=11, labelcolor="linecolor")
        drawn.set_layout_engine("tight", pad=0.4)
        data = svg(drawn, alt)
    return Figure("mqar", data, "svg", alt, "Up is better, left keeps less; three points a line: heads of 16, 32, 64.")


def table(lines: Sequence[Run]) -> str:
    """Accuracy by the number of pairs in a row: means over the seeds."""
    if not any(run.recipe in MQAR.values() for run in lines):
        return f"{NOT_RUN.capitalize()}."
    rows = []
    for name in NAMES:
        for head, recipe in MQAR.items():
            runs = [run for run in lines if (run.recipe, run.attention, run.status) == (recipe, name, "done")]
            found = [[run.scores["test"].get(f"accuracy@{n}") for run in runs] for n in PAIRS]
            cells = [_mean(values) for values in found]
            rows.append([name, f"{head}", f"{state_size(name, head):,}", *cells])
    return Table("", ["attention", "head", "numbers kept", *(f"{n} pairs" for n in PAIRS)], rows).markdown


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{100 * sum(known) / len(known):.1f} %" if known else NOT_RUN
