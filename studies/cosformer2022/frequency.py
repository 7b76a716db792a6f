"""Figure 3: where the attention of trained models lies, by the paper's algorithm 2, and the bare cosine matrix."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cosformer.report.charts import Line, draw_lines
from cosformer.report.figure import Figure, styles
from cosformer.report.heat_maps import Panel, coarse, heat_maps

FORMAT, KIND = 1, "attention-frequency"
FINEST = 128
THRESHOLD = 0.9  # the paper does not state the one of its figure 3
THRESHOLDS = tuple(round(0.05 * i, 2) for i in range(1, 20))
TITLES = {"softmax": "vanilla", "cosformer": "cosFormer", "relu": "no re-weighting"}


def frequency_document(
    weights: Mapping[str, Sequence[np.ndarray]], *, threshold: float = THRESHOLD, **provenance: Any
) -> dict[str, Any]:
    """What goes into the result file. ``weights``: for each attention its matrices [N,N], over layers, heads and
    inputs. Pictures larger than FINEST are averaged in blocks, so that the file stays small; ``size`` keeps N.
    ``provenance``: command, date, commit, machine, runs … as they are."""
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
    """The four heat maps and the number of keys that hold most of the attention, from the document."""
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
    x_label, y_label = "share of the attention", "keys, mean of all queries"
    keys = draw_lines(lines, title=what, x_label=x_label, y_label=y_label, alt=alt)
    return [maps, Figure("figure3-keys", keys, "svg", alt, f"{what}: lower is more concentrated.")]


def taken(matrix: np.ndarray, threshold: float) -> np.ndarray:
    """Which keys algorithm 2 takes of each row of ``matrix`` [N,S]: the largest weights until their sum exceeds
    ``threshold``, that one included. A row that never gets there (weights that are all zero, or negative) gives all its
    keys."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold}; it is a share of the attention, from 0 to 1")
    matrix = np.asarray(matrix, dtype=np.float64)
    if matrix.ndim != 2:
        raise ValueError(f"a matrix of weights has two axes; this one has the shape {matrix.shape}")
    order = np.argsort(-matrix, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(matrix, order, axis=1), axis=1)
    # the largest sum so far: with negative weights a sum may fall below the threshold again, but the walk has ended
    before = np.pad(np.maximum.accumulate(sums, axis=1)[:, :-1] <= threshold, ((0, 0), (1, 0)), constant_values=True)
    found = np.empty_like(before)
    np.put_along_axis(found, order, before, axis=1)
    return found


def threshold_frequency(matrices: Iterable[np.ndarray], threshold: float) -> np.ndarray:
    """The share of ``matrices`` in which algorithm 2 takes key l of row i [N,S]."""
    return np.mean([taken(matrix, threshold) for matrix in _some(matrices)], axis=0)


def threshold_counts(matrices: Iterable[np.ndarray], thresholds: Sequence[float]) -> np.ndarray:
    """For each of ``thresholds`` the mean number of keys that algorithm 2 takes of a row, over rows and matrices."""
    chosen = _some(matrices)
    rows = sum(len(matrix) for matrix in chosen)
    return np.array([sum(taken(matrix, x).sum() for matrix in chosen) for x in thresholds]) / rows


def mean_distance(matrices: Iterable[np.ndarray]) -> float:
    """How many positions away the attention lies: the mean of ``|i - l|`` by the size of the weights, over rows and
    matrices. A row without any weight does not count."""
    total, rows = 0.0, 0
    for matrix in matrices:
        size = np.abs(np.asarray(matrix, dtype=np.float64))
        away = np.abs(np.arange(size.shape[0])[:, None] - np.arange(size.shape[1]))
        weight = size.sum(axis=1)
        total += float(((size * away).sum(axis=1)[weight > 0] / weight[weight > 0]).sum())
        rows += int((weight > 0).sum())
    if not rows:
        raise ValueError("no weight to measure a distance by")
    return total / rows


def cosine_matrix(n: int) -> np.ndarray:
    """The bare re-weighting ``cos(pi/2 (i - j) / n)`` [n,n]."""
    place = np.arange(n)
    return np.cos(np.pi / 2 * (place[:, None] - place) / n)


def _some(matrices: Iterable[np.ndarray]) -> list[np.ndarray]:
    found = list(matrices)
    if not found:
        raise ValueError("no matrix to count in")
    return found
