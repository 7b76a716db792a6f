"""Positions as angles: cos and sin of (pi/2) * position / length, from float64, cast once."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

Array = np.ndarray[Any, Any]
HALF_PI = math.pi / 2
_CACHED_PAIRS = 512 * 512
_BLOCK = 65_536  # cached tables start and end at multiples of this, so that calls at neighbouring places share one


def angle_tables(
    first: int | Tensor, count: int, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles of positions ``first .. first+count-1``, each ``[count]``.

    Positions are absolute and at most ``length``, so angles lie in [0, pi/2] and no cosine or sine is negative: sums of
    features never cancel, in float32 at any length.
    """
    position = torch.arange(count, dtype=torch.float64, device=with_float64(device)) + first
    angle = position * (HALF_PI / length)
    # at position = length the product may round above pi/2
    return angle.cos().clamp_min(0).to(dtype).to(device), angle.sin().to(dtype).to(device)


def pair_weight(
    n: int,
    s: int,
    *,
    causal: bool,
    q_first: int | Tensor = 0,
    k_first: int | Tensor = 0,
    q_len: int,
    k_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | None:
    """What multiplies the score of query i and key j, ``[n, s]``; None where it would be all ones.

    The cosine of the angle between them; with ``causal`` zero after the query, the queries being the last n of s
    positions.
    """
    if not q_len and not causal:
        return None
    if torch.compiler.is_compiling() or device.type != "cpu" or n * s > _CACHED_PAIRS:
        where = with_float64(device)
        weight = torch.ones(n, s, dtype=torch.float64, device=where)
        if q_len:
            query = (torch.arange(n, dtype=torch.float64, device=where) + q_first) * (HALF_PI / q_len)
            key = (torch.arange(s, dtype=torch.float64, device=where) + k_first) * (HALF_PI / k_len)
            weight = (query[:, None] - key).cos()
        return (weight.tril(s - n) if causal else weight).to(dtype).to(device)
    if q_len == k_len:  # only the difference of positions matters: calls at other places share one table
        q_first, k_first = q_first - k_first, 0
    return _tensor(_pair_table, (n, s, causal, int(q_first), int(k_first), q_len, k_len, _kind(dtype)), device)


def cached_angles(first: int, count: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """cos and sin of the angles of ``count`` positions from ``first``, ``[count, 2]``, for untraced kernels."""
    start = first // _BLOCK * _BLOCK
    end = min(-(-(first + count) // _BLOCK) * _BLOCK, length + 1)
    return _tensor(_angle_table, (start, end, length, _kind(dtype)), device)[first - start : first - start + count]


def cached_pair_weight(chunk: int, causal: bool, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The factor on scores inside a chunk, ``[C, C]``: cosine of the distance; causal: zero above the diagonal."""
    return _tensor(_pair_table, (chunk, chunk, causal, 0, 0, length, length, _kind(dtype)), device)


def with_float64(device: torch.device) -> torch.device:
    """Where a table for ``device`` is made: Apple's MPS has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


# Cached tables are made in float64 on the CPU, because not every device has float64: on a GPU making one would take
# longer than the attention. Kept as numpy arrays, because a tensor made inside a transform, a fake mode or
# inference_mode must not outlive it.
@lru_cache(maxsize=16)
def _angle_table(start: int, end: int, length: int, kind: Any) -> Array:
    angle = np.arange(start, end) * (HALF_PI / length)
    # at position = length the product may round above pi/2
    return np.stack([np.cos(angle).clip(min=0), np.sin(angle)], axis=-1).astype(kind)


@lru_cache(maxsize=64)
def _pair_table(
    n: int, s: int, causal: bool, q_first: int, k_first: int, q_len: int, k_len: int, kind: type[np.floating[Any]]
) -> Array:
    weight = np.ones((n, s))
    if q_len:
        query = (np.arange(n) + q_first) * (HALF_PI / q_len)
        key = (np.arange(s) + k_first) * (HALF_PI / k_len)
        weight = np.cos(query[:, None] - key)
    return (np.tril(weight, s - n) if causal else weight).astype(kind)


@lru_cache(maxsize=64)
def _on_device(make: Callable[..., Array], settings: tuple[Any, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.from_numpy(make(*settings)).to(device)


def _tensor(make: Callable[..., Array], settings: tuple[Any, ...], device: torch.device) -> Tensor:
    if device.type == "cpu":
        # a new tensor for every call, of the table's memory: nobody writes to it
        return torch.from_numpy(make(*settings))
    if _get_current_dispatch_mode():
        return _on_device.__wrapped__(make, settings, device)
    return _on_device(make, settings, device)


def _kind(dtype: torch.dtype) -> type[np.floating[Any]]:
    return np.float64 if dtype == torch.float64 else np.float32
