"""Draw matrices.png: every attention's matrix on one and the same input. `make pictures` runs it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cosformer.attention import ATTENTIONS, build_attention
from cosformer.attention.base import Attention
from cosformer.report.heat_maps import Panel, as_png

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


def picture(names: Sequence[str] = tuple(ATTENTIONS)) -> bytes:
    """A PNG with one panel for each of ``names``; each panel has its own scale."""
    q, k = example_input()
    panels = [Panel(name, attention_matrix(example_attention(name), q, k).numpy()) for name in names]
    return as_png(panels, title="Attention on one and the same input", columns=7, dpi=90)


if __name__ == "__main__":
    Path(__file__).with_name("matrices.png").write_bytes(picture())
