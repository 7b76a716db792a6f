"""From a row sum to what the row is divided by: one table for every kernel of the family."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Normaliser(NamedTuple):
    divisor: Callable[[Tensor, float], Tensor]  # (den, eps) -> a, the row is divided by a
    slope: Callable[[Tensor, float], Tensor]  # (den, eps) -> da/dden


def _signed(den: Tensor, eps: float) -> Tensor:
    return torch.where(den < 0, den.clamp_max(-eps), den.clamp_min(eps))


NORMALISERS: dict[str, Normaliser] = {
    # never below eps: a row with nothing to attend to gives zeros
    "clamp": Normaliser(lambda den, eps: den.clamp_min(eps), lambda den, eps: (den > eps).to(den.dtype)),
    # elu+1 linear attention adds eps, as its paper does
    "add": Normaliser(lambda den, eps: den + eps, lambda den, eps: torch.ones_like(den)),
    # features of either sign: keep the sign, keep away from zero
    "signed": Normaliser(_signed, lambda den, eps: (den.abs() > eps).to(den.dtype)),
    # the bare numerator
    "none": Normaliser(lambda den, eps: torch.ones_like(den), lambda den, eps: torch.zeros_like(den)),
}


def check_normaliser(name: str) -> None:
    if name not in NORMALISERS:
        raise ValueError(f"unknown normaliser {name!r}; known: {', '.join(NORMALISERS)}")
