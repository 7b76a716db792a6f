"""Decay: fixed rates per channel, and what a distance leaves of a sum, from float64 and cast once."""

import torch
from torch import Tensor

from cosformer.ops.angles import with_float64

FASTEST = 4.0  # per token: what all forms support exactly
_SMALLEST = 1e-37  # what is left below this is zero: subnormal numbers are slow


def by_feature(decay: Tensor, features: int) -> Tensor:
    """``[Hk,D] -> [Hk,F]``: the cos half and the sin half of the features share the rates."""
    return decay.repeat(1, features // decay.shape[1])


def exponents(decay: Tensor, distance: Tensor | float, dtype: torch.dtype) -> Tensor:
    """``exp(-decay * distance)``, in ``dtype``; the factors broadcast."""
    where = with_float64(decay.device)
    left = (-decay.to(where, torch.float64) * distance).exp().to(dtype)
    return left.masked_fill(left < _SMALLEST, 0).to(decay.device)


def fade(sums: Tensor, decay: Tensor, distance: float) -> Tensor:
    """``sums * exp(-decay * distance)``.

    A factor close to one rounds to a neighbour of itself, and a recurrence would repeat that error: there the change is
    added.
    """
    x = decay.to(with_float64(decay.device), torch.float64) * -distance
    small = x.abs() < 0.5
    factor = torch.where(small, 1.0, x.exp()).to(sums.dtype)
    change = torch.where(small, x.expm1(), 0.0).to(sums.dtype)
    factor = factor.masked_fill(factor < _SMALLEST, 0)
    return torch.addcmul(sums * factor.to(sums.device), sums, change.to(sums.device))
