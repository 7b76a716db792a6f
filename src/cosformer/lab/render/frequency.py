"""Figure 3: where the attention of trained models lies, by the paper's algorithm 2, and the bare cosine matrix."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cosformer.lab.render.chart import Chart, Line, draw
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.heat_maps import Panel, coarse, heat_maps
from cosformer.lab.render.palette import styles
from cosformer.lab.render.threshold import cosine_matrix, mean_distance, threshold_counts, threshold_frequency

FORMAT, KIND = 1, "attention-frequency"
FINEST = 128
THRESHOLD = 0.9  # the paper does not state the one of its figure 3
THRESHOLDS = tuple(round(0.05 * i, 2) for i in range(1, 20))
TITLES = {"softmax": "vanilla", "cosformer": "cosFormer", "relu": "no re-weighting"}


def frequency_document(
    weights: Mapping[str, Sequence[np.ndarray]], *, threshold: float = THRESHOLD, **provenance: Any
) -> dict[str, Any]:
    """What goes into the result file. ``weights``: for each attention its matrices [N,N], over layers, heads and inputs.
    Pictures larger than FINEST are averaged in blocks, so that the file stays small; ``size`` keeps N. ``provenance``: command, date, commit, machine, runs … as they are."""
    panels = []
    for name, matrices in weights.items():
        share = np.round(100 * coarse(threshold_frequency(matrices, threshold), FINEST)).astype(int).tolist()
        counts = [round(float(x), 3) for x in threshold_counts(matrices, THRESHOLDS)]
        panel = {"attention": name, "matrices": len(matrices), "distance": round(mean_distance(matrices), 3)}
        panels.append({**panel, "percent": share, "counts": counts})
    return {
        "format": FORMAT,
        "kind": KIND,
        **provenance,
        "threshold": threshold,
        "thresholds": list(THRESHOLDS),
        "size": len(next(iter(weights.values()))[0]) if weights else 0,
        "panels": panels,
    }


def frequency_figures(document: dict[str, Any]) -> list[Figure]:
    """The four heat maps, and how many keys hold a share of the attention; from what :func:`frequency_document` gave."""
    if document.get("format") != FORMAT or document.get("kind") != KIND:
        raise ValueError(f"not a result of kind {KIND!r} in format {FORMAT}")
    panels = document["panels"]
    if not panels:
        raise ValueError("the result holds no panel")
    threshold, n = document["threshold"], document["size"]
    drawn = [Panel(TITLES.get(p["attention"]) or p["attention"], np.array(p["percent"]) / 100, 1.0) for p in panels]
    drawn.append(Panel("cos, bare", cosine_matrix(n), 1.0))
    title = f"How often a key is among those that hold {threshold:.0%} of a query's attention"
    caption = (
        f"{title}: queries down, keys across, over {panels[0]['matrices']} matrices of each trained model"
        " (layers, heads and inputs). Last: the cosine alone, from 0 to 1."
    )
    maps = heat_maps(drawn, name="figure3", title=title, caption=caption, columns=2, ends=("never", "always"))
    looks = styles([p["attention"] for p in panels])
    lines = [
        Line(p["attention"], list(zip(document["thresholds"], p["counts"], strict=True)), *looks[p["attention"]])
        for p in panels
    ]
    half = document["thresholds"].index(0.5)
    words = [f"{p['attention']}: half of it in {p['counts'][half]:.1f} keys." for p in panels]
    what = f"Keys that hold a share of the attention, of {n}"
    alt = f"{what}. {' '.join(words)}"
    chart = Chart(what, "share of the attention", "keys, mean of all queries", lines=lines)
    return [maps, Figure("figure3-keys", draw(chart, alt).encode(), "svg", alt, f"{what}: lower is more concentrated.")]
