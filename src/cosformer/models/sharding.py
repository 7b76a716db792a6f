"""A model's input sharded over the ranks of a process group: what a rank needs to know about the others."""

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosformer.models.config import IGNORE
from cosformer.models.packing import without_crossings


class Place(NamedTuple):
    """A rank's shard: its first position, the total length, and the unmasked tokens before it, ``[B]``."""

    first: int
    total: int
    counted: Tensor | None


def find_place(group: Any, given: Tensor, attention_mask: Tensor | None) -> Place:
    """The place of ``given [B,n,...]`` in the whole sequence; ``attention_mask [B,n]`` covers this shard."""
    from cosformer.ops import parallel  # torch.distributed is loaded by those who use it

    def make_row() -> tuple[int, int, int]:
        if attention_mask is not None and attention_mask.shape != given.shape[:2]:
            raise ValueError(
                f"attention_mask has shape {tuple(attention_mask.shape)}; expected that of this rank's shard, "
                f"{list(given.shape[:2])}"
            )
        return given.shape[1], given.shape[0], int(attention_mask is not None)

    lengths, rows, masked = zip(*parallel.all_gather_ints(group, make_row, 3, given.device), strict=True)
    parallel.check_equal({"batch": rows, "attention_mask": masked})
    before = 0
    if attention_mask is not None:
        counts = gather(group, (attention_mask != 0).sum(1))
        before = counts[: torch.distributed.get_rank(group)].sum(0)
    first = [0, *accumulate(lengths)][torch.distributed.get_rank(group)]
    return Place(first, sum(lengths), before if isinstance(before, Tensor) else None)


def check_fit(arguments: dict[str, Any]) -> None:
    """Raise ValueError if any of these ``arguments`` is given together with ``sequence_group``."""
    names = [name for name, value in arguments.items() if value is not None and value is not False]
    if names:
        raise ValueError(f"sequence_group does not go with {', '.join(names)}")


def gather(group: Any, x: Tensor) -> Tensor:
    """``x`` of every rank, which must have one shape: ``[ranks, ...]``."""
    every = [torch.empty_like(x) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(every, x.contiguous(), group=group)
    return torch.stack(every)


def count_labels(group: Any, labels: Tensor) -> Tensor:
    """The number of labels, on all ranks, that are not ignored."""
    return gather(group, (labels != IGNORE).sum()).sum()


def shifted(group: Any, labels: Tensor, bounds: Tensor | None) -> Tensor:
    """Next-token targets of a shard ``[B,n]``: its last token is followed by the next shard's first.

    ``bounds``: of packed sequences in the whole; what follows one does not follow from it.
    """
    rank, n = torch.distributed.get_rank(group), labels.shape[1]
    lengths = gather(group, torch.tensor(n, device=labels.device))
    nothing = labels.new_full(labels.shape[:1], IGNORE)
    firsts = gather(group, labels[:, 0] if n else nothing)
    following = next((firsts[r] for r in range(rank + 1, len(firsts)) if lengths[r]), nothing)
    targets = torch.cat((labels[:, 1:], following[:, None]), 1)[:, :n]
    return targets if bounds is None else without_crossings(targets, bounds, first=int(lengths[:rank].sum()))


def refuse(head: Any, arguments: dict[str, Any]) -> None:
    """Raise ValueError if a head that needs the whole sequence is given a shard of it."""
    if arguments.get("sequence_group") is not None:
        raise ValueError(
            f"{type(head).__name__} needs the whole sequence on every process; sequence_group works with "
            "CosformerModel, CosformerForCausalLM and CosformerForMaskedLM"
        )
