"""Figure 4: how the loss falls while training, each seed as a thin line behind the mean."""

from collections.abc import Sequence

from cosformer.figures.chart import Chart, Line, draw
from cosformer.figures.figure import Figure
from cosformer.figures.palette import styles
from cosformer.runs import Curve, Run

PAPER = ("softmax", "cosformer", "relu")  # vanilla, cosFormer, without re-weighting: the paper's figure 4


def loss_curves(runs: Sequence[Run], *, evaluation: str | None, attentions: Sequence[str] | None = None) -> Figure:
    """The loss of ``runs`` of one recipe against the step. ``evaluation``: None for the training loss, or the name of an
    evaluation on the way, as "valid". ``attentions``: which, and in which order; None: all that there are."""
    recipes = sorted({run.recipe for run in runs})
    if len(recipes) != 1:
        raise ValueError(f"curves of one recipe at a time; these runs are of {', '.join(recipes) or 'none'}")
    names = list(dict.fromkeys(run.attention for run in runs)) if attentions is None else list(attentions)
    looks = styles(names)
    lines: list[Line] = []
    words: list[str] = []
    for name in names:
        curves = [
            run.train_curve() if evaluation is None else run.eval_curve(evaluation)
            for run in runs
            if run.attention == name
        ]
        curves = [curve for curve in curves if curve]
        if not curves:
            words.append(f"{name}: not run.")
            continue
        mean = mean_curve(curves)
        colour, dashes = looks[name]
        if len(curves) > 1:
            lines += [Line("", curve, colour) for curve in curves]
        lines.append(Line(name, mean, colour, dashes))
        seeds = f"mean of {len(curves)} seeds" if len(curves) > 1 else "one seed"
        (first, start), (last, end) = mean[0], mean[-1]
        words.append(f"{name}: from {start:.3f} at step {first:,} to {end:.3f} at step {last:,} ({seeds}).")
    what = "training" if evaluation is None else evaluation
    title = f"{what.capitalize()} loss, {recipes[0]}"
    alt = f"{title}, against the step. {' '.join(words)}"
    chart = Chart(title, "step", "nats", lines=lines)
    caption = f"{title}. Thin lines are seeds, the thick one is their mean."
    return Figure(f"loss-{recipes[0]}-{what}", draw(chart, alt).encode(), "svg", alt, caption)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean at each step that every curve has."""
    shared = set.intersection(*({step for step, _ in curve} for curve in curves))
    sums = dict.fromkeys(sorted(shared), 0.0)
    for curve in curves:
        for step, value in curve:
            if step in sums:
                sums[step] += value
    return [(step, total / len(curves)) for step, total in sums.items()]
