"""Figure 4: how the loss falls while training, each seed as a thin line behind the mean."""

from collections.abc import Mapping, Sequence

from cosformer.lab.records import Curve, Run
from cosformer.lab.render.chart import Line, draw_lines
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.palette import styles

PAPER = ("softmax", "cosformer", "relu")  # vanilla, cosFormer, without re-weighting: the paper's figure 4


def loss_curves(runs: Sequence[Run], attentions: Sequence[str]) -> list[Figure]:
    """Training and validation loss of the runs of one recipe, where any was logged. Of an attention the finished runs count;
    while there are none, those that are under way: a mean over both would end early."""
    chosen = {name: [x for x in runs if x.attention == name and x.status == "done"] for name in attentions}
    chosen = {name: done or [x for x in runs if x.attention == name] for name, done in chosen.items()}
    recipe = runs[0].recipe if runs else ""
    found = []
    for kind, field in (("training", "train_loss"), ("validation", "valid_loss")):
        curves = {name: [getattr(run, field) for run in of_name] for name, of_name in chosen.items()}
        if any(curve for seeds in curves.values() for curve in seeds):
            found.append(draw_curves(curves, name=f"figure4-{kind}", title=f"{kind.capitalize()} loss, {recipe}"))
    return found


def draw_curves(curves: Mapping[str, Sequence[Curve]], *, name: str, title: str, unit: str = "nats") -> Figure:
    """``curves``: for each attention those of its seeds; an attention without any is named as not run."""
    looks = styles(list(curves))
    lines: list[Line] = []
    words: list[str] = []
    for attention, found in curves.items():
        found = [curve for curve in found if curve]
        mean = mean_curve(found) if found else []
        if not mean:
            words.append(f"{attention}: not run.")
            continue
        colour, dashes = looks[attention]
        if len(found) > 1:
            lines += [Line("", curve, colour) for curve in found]
        lines.append(Line(attention, mean, colour, dashes))
        seeds = f"mean of {len(found)} seeds" if len(found) > 1 else "one seed"
        (first, start), (last, end) = mean[0], mean[-1]
        words.append(f"{attention}: from {start:.3f} at step {first:,} to {end:.3f} at step {last:,} ({seeds}).")
    alt = f"{title}, against the step. {' '.join(words)}"
    several = any(len(found) > 1 for found in curves.values())
    caption = title + (": thin lines are seeds, the thick one is their mean." if several else ", one seed each.")
    drawn = draw_lines(lines, title=title, x_label="step", y_label=unit, alt=alt)
    return Figure(name, drawn, "svg", alt, caption)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean at each step that every curve has."""
    shared = set.intersection(*({step for step, _ in curve} for curve in curves))
    sums = dict.fromkeys(sorted(shared), 0.0)
    for curve in curves:
        for step, value in curve:
            if step in sums:
                sums[step] += value
    return [(step, total / len(curves)) for step, total in sums.items()]
