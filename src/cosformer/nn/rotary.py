"""Rotary positions: queries and keys turned by their position, channel pair by channel pair (Su et al. 2021)."""

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]  # cos and sin, [B or 1, N, D]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """``x [B,H,N,D]``, channel i paired with channel i + D/2, turned by the angles of its positions."""
    cos, sin = (part.unsqueeze(1).to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
