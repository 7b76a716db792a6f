"""Tokens brought together by group: the layout of attentions that hash, sort or cluster."""

import torch
from torch import Tensor


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """``x [B,H,N,C]``, ``index [B,H,...]`` into N -> ``[B,H,...,C]``; an index past the end takes the last row."""
    batch, heads, n, channels = x.shape
    first = torch.arange(batch * heads, device=x.device).view(batch, heads, *[1] * (index.dim() - 2)) * n
    rows = (index.clamp(max=n - 1) + first).flatten()
    # index_select and not gather: its backward is one index_add over whole rows
    return x.reshape(batch * heads * n, channels).index_select(0, rows).view(*index.shape, channels)


def add_rows(x: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """``x [B,H,N,C]``, ``index [B,H,N]`` below ``num_rows`` -> sums ``[B,H,num_rows,C]`` of rows with equal index."""
    batch, heads, _, channels = x.shape
    first = torch.arange(batch * heads, device=x.device).view(batch, heads, 1) * num_rows
    sums = x.new_zeros(batch * heads * num_rows, channels)
    return sums.index_add(0, (index + first).flatten(), x.flatten(0, 2)).view(batch, heads, num_rows, channels)


def sort_ranks(order: Tensor) -> Tensor:
    """The place of each token in ``order [..., N]``, a permutation: its inverse."""
    return torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )


def group_blocks(group: Tensor, num_groups: int, block: int, num_blocks: int | None = None) -> tuple[Tensor, Tensor]:
    """Lay tokens out in blocks of ``block`` slots so that no block holds tokens of two groups.

    ``group [..., N]`` in 0 ... ``num_groups``; tokens of the group ``num_groups`` itself get no slot. Within a group
    the tokens keep their order. ``num_blocks`` may be given when the caller knows that fewer suffice than the
    N / block + num_groups of the worst case.
    Returns ``token [..., num_blocks, block]``, the token in each slot (N: none), and ``slot [..., N]``, the slot of
    each token, counted over all blocks (num_blocks * block: none).
    """
    n = group.shape[-1]
    if num_blocks is None:
        num_blocks = (n + num_groups * (block - 1)) // block
    nowhere = num_blocks * block
    counts = group.new_zeros(*group.shape[:-1], num_groups + 1).scatter_add_(-1, group, torch.ones_like(group))
    blocks = (counts + block - 1) // block
    # slot of a group's first token, less the sorted place of that token
    shift = (blocks.cumsum(-1) - blocks) * block - (counts.cumsum(-1) - counts)
    slot = sort_ranks(group.argsort(dim=-1, stable=True)) + shift.gather(-1, group)
    slot = slot.masked_fill(group == num_groups, nowhere)
    token = group.new_full((*group.shape[:-1], nowhere + 1), n)
    token.scatter_(-1, slot, torch.arange(n, device=group.device).expand_as(slot))
    return token[..., :nowhere].unflatten(-1, (num_blocks, block)), slot
