"""A picture of every attention's matrix on one and the same input."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cosformer.attention import ATTENTIONS, build_attention
from cosformer.attention.base import Attention
from cosformer.extras import require

LENGTH, HEAD_DIM = 96, 32
# Window, block and rank sizes at which the structure shows in a picture of LENGTH positions; others as they come.
OPTIONS: dict[str, dict[str, Any]] = {
    "local": {"window": 8},
    "longformer": {"window": 16},
    "sparse": {"stride": 12, "columns": 2},
    "bigbird": {"block": 8, "num_random": 1},
    "reformer": {"num_hashes": 1, "chunk": 12},
    "sinkhorn": {"block": 12},
    "smyrf": {"num_hashes": 1, "cluster_size": 12},
    "clustered": {"num_clusters": 8, "topk": 8},
    "linformer": {"rank": 12},
    "nystrom": {"num_landmarks": 12, "conv_kernel": None},
    "inducing": {"num_inducing": 12},
}


def example_input() -> tuple[Tensor, Tensor]:
    """q and k [1,1,LENGTH,HEAD_DIM] of a made-up sequence: three times the same passage, neighbours alike.

    So what attends by content shows bands at the distance of the repetition, what attends by position does not.
    """
    generator = torch.Generator().manual_seed(0)
    period = LENGTH // 3
    steps = torch.randn(period, HEAD_DIM, generator=generator)
    phase = torch.arange(period)[:, None] - torch.arange(period)
    distance = torch.minimum(phase % period, -phase % period)
    passage = torch.exp(-(distance**2) / 8.0) @ steps  # smooth, and its end leads to its beginning
    passage = passage / passage.std()
    noise = 0.3 * torch.randn(2, LENGTH, HEAD_DIM, generator=generator)
    q, k = passage.repeat(3, 1) + noise
    return q[None, None], k[None, None]


@torch.no_grad()
def attention_matrix(attn: Attention, q: Tensor, k: Tensor) -> Tensor:
    """The weights [N,S] of one head: every mechanism is linear in v, so the identity for v brings them out."""
    s = k.shape[2]
    return attn(q, k, torch.eye(s).expand(1, 1, s, s))[0, 0]


def example_attention(name: str) -> Attention:
    """``name`` as the picture shows it: bidirectional where it has that form, otherwise causal."""
    sizes = {"num_heads": 1, "head_dim": HEAD_DIM, "max_len": LENGTH, **OPTIONS.get(name, {})}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the learned parts, here at their initial values
        try:
            return build_attention(name, **sizes, causal=False).eval()
        except ValueError:
            return build_attention(name, **sizes, causal=True).eval()


def draw_attention_maps(path: Path, names: list[str] | None = None) -> None:
    """Write a PNG with one panel for each of ``names`` (default: all). Blue is positive, red negative, white zero;
    each panel has its own scale."""
    require("plot", "matplotlib")
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(ATTENTIONS) if names is None else names
    colors = colormaps["RdBu"].resampled(33)  # few enough that the file stays small
    q, k = example_input()
    columns = min(7, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(1.5 * columns, 1.7 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        axes.set_axis_off()
    for name, axes in zip(names, figure.axes, strict=False):
        weights = attention_matrix(example_attention(name), q, k)
        # a few large weights, as on the diagonal, must not make the rest of the panel white
        limit = max(float(weights.abs().flatten().quantile(0.98)), 1e-12)
        axes.imshow(weights.numpy(), cmap=colors, vmin=-limit, vmax=limit, interpolation="nearest")
        axes.set(title=name, xticks=[], yticks=[])
        axes.title.set_fontsize(8)
        axes.set_axis_on()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
