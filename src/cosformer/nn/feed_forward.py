"""The position-wise feed-forward network of a transformer block."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.nn.projection import project

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": partial(F.relu, inplace=True),  # of a fresh product, which nothing else reads: a pass over memory less
    "silu": F.silu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function behind ``name``; an unknown name raises and lists the known ones."""
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """Widen, activate, narrow; ``dropout`` follows the activation."""

    def __init__(
        self, hidden_size: int, inner_size: int, *, act: str = "gelu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.widen = nn.Linear(hidden_size, inner_size, bias=bias)
        self.narrow = nn.Linear(inner_size, hidden_size, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]"""
        # As rows: of more dimensions a product comes as a view, and autograd pays for an activation in place on a view
        # with three copies of the widened tensor.
        rows = x.reshape(-1, x.shape[-1])
        return self._narrow(self.act(project(self.widen, rows))).view(x.shape)

    def _narrow(self, inner: Tensor) -> Tensor:
        dropout = self.dropout
        return project(self.narrow, dropout(inner) if dropout.training else inner)


class GatedFeedForward(FeedForward):
    """``narrow(act(gate(x)) * widen(x))``: with ``act="silu"`` the SwiGLU of Llama and Qwen (Shazeer 2020)."""

    def __init__(
        self, hidden_size: int, inner_size: int, *, act: str = "silu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__(hidden_size, inner_size, act=act, dropout=dropout, bias=bias)
        self.gate = nn.Linear(hidden_size, inner_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]"""
        rows = x.reshape(-1, x.shape[-1])
        return self._narrow(self.act(project(self.gate, rows)) * project(self.widen, rows)).view(x.shape)


FEED_FORWARDS: dict[str, type[FeedForward]] = {"plain": FeedForward, "gated": GatedFeedForward}
