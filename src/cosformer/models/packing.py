"""Packed sequences: several of them one behind the other in one row, none seeing another."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.models.config import IGNORE

# what transformers' DataCollatorWithFlattening hands over; the longest lengths follow from the bounds
ARGUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx", "max_length_q", "max_length_k")


def find_bounds(kwargs: dict[str, Any], position_ids: Tensor | None, rows: int, length: int) -> Tensor | None:
    """Where packed sequences begin and end, int64 ``[n+1]`` from 0 to ``length``; None if nothing is packed.

    Told by ``cu_seq_lens_q`` and ``cu_seq_lens_k``, by ``seq_idx [1,N]``, or by ``position_ids`` that start anew. What
    contradicts another is refused.
    """
    if position_ids is not None and position_ids.is_meta:
        position_ids = None  # no values to look at
    told = {name: kwargs[name].long() for name in ("cu_seq_lens_q", "cu_seq_lens_k") if kwargs.get(name) is not None}
    if kwargs.get("seq_idx") is not None:
        told["seq_idx"] = _bounds_of_changes(kwargs["seq_idx"].diff(dim=-1) != 0, "seq_idx", rows)
    if not told and position_ids is not None:
        found = _bounds_of_positions(position_ids)
        if found is not None:
            told["position_ids"] = found
    if not told:
        return None
    if rows != 1:
        raise ValueError(f"{', '.join(told)} pack sequences into one row, and the batch has {rows}; concatenate them")
    bounds = next(iter(told.values()))
    for name, other in told.items():
        if other.shape != bounds.shape or not bool((other == bounds).all()):
            raise ValueError(f"{name} says {other.tolist()} and {next(iter(told))} {bounds.tolist()}; they must agree")
    if bounds[0] != 0 or bounds[-1] != length or bool((bounds.diff() < 0).any()):
        raise ValueError(
            f"{next(iter(told))} gives {bounds.tolist()}; expected bounds that rise from 0 to {length} tokens"
        )
    return bounds


def positions_of(bounds: Tensor) -> Tensor:
    """Positions that start anew in each sequence, ``[1,T]``."""
    ends = itertools.pairwise(bounds.tolist())
    return torch.cat([torch.arange(end - start, device=bounds.device) for start, end in ends]).unsqueeze(0)


def without_crossings(targets: Tensor, bounds: Tensor, first: int = 0) -> Tensor:
    """Next-token targets ``[1,T]`` with none at the end of a sequence: the next one's first token does not follow from
    it.

    ``first``: the place of the first target where the bounds are those of a longer row.
    """
    last = torch.zeros(int(bounds[-1]) + 1, dtype=torch.bool, device=targets.device)
    last[bounds] = True
    return targets.masked_fill(last[first + 1 : first + 1 + targets.shape[1]], IGNORE)


def _bounds_of_positions(position_ids: Tensor) -> Tensor | None:
    falls = position_ids.diff(dim=-1) <= 0
    if not bool(falls.any()):
        return None
    starts = position_ids[..., 1:][falls]
    if bool((starts != position_ids[0, 0]).any()):
        raise ValueError(
            f"position_ids fall to {int(starts[starts != position_ids[0, 0]][0])} and begin with "
            f"{int(position_ids[0, 0])}: neither one sequence nor packed ones; give attention_mask for padding, or let "
            "them start anew"
        )
    return _bounds_of_changes(falls, "position_ids", position_ids.shape[0])


def _bounds_of_changes(changes: Tensor, name: str, rows: int) -> Tensor:
    if changes.dim() != 2 or changes.shape[0] != 1 or rows != 1:
        raise ValueError(f"{name} packs sequences into one row, and the batch has {rows}; concatenate them")
    inner = changes[0].nonzero().squeeze(1) + 1
    return F.pad(F.pad(inner, (1, 0)), (0, 1), value=changes.shape[1] + 1)
