"""From a sequence of vectors to one, and from one to class scores."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from cosformer.models.config import CosformerConfig
from cosformer.nn.feed_forward import activation


def first(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """[B,N,C] -> [B,C]: the first position, or the first unmasked one under left padding."""
    if mask is None:
        return hidden[:, 0]
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), mask.to(torch.int8).argmax(dim=1)]


def mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """[B,N,C] -> [B,C]: the mean of the unmasked positions; zeros if there is none."""
    if mask is None:
        return hidden.mean(1)
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def mean_all(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """[B,N,C] -> [B,C]: the mean of all positions, padding included, as Long Range Arena does."""
    return hidden.mean(1)


POOL: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {"first": first, "mean": mean, "mean_all": mean_all}


class Classifier(nn.Module):
    """Dropout, linear and activation for each hidden size, then dropout and a linear to the ``outputs`` (num_labels) scores."""

    def __init__(self, config: CosformerConfig, in_size: int, outputs: int | None = None) -> None:
        super().__init__()
        sizes = [config.hidden_size] if config.classifier_sizes is None else config.classifier_sizes
        widths = [in_size, *sizes]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.scores = nn.Linear(widths[-1], outputs or config.num_labels or 2)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.act = activation(config.classifier_act)

    def forward(self, x: Tensor) -> Tensor:
        """[B,in_size] -> [B,num_labels]"""
        for layer in self.hidden:
            x = self.act(layer(self.dropout(x)))
        return self.scores(self.dropout(x))
