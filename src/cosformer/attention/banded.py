"""Softmax attention on a band of the attention matrix, computed block by block: memory grows with N times the width."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.slices import slices, works_in_slices
from cosformer.ops.dispatch import writes_onnx
from cosformer.ops.masked_softmax import allowed_attention

BLOCK = 64  # query rows that share one window of keys; 64 measured fastest on CPU for windows of 64 to 512


def band_attention(
    q: Tensor, k: Tensor, v: Tensor, *, left: int, right: int, key_mask: Tensor | None, num_global: int = 0
) -> Tensor:
    """Position i attends to the keys i - left ... i + right, and to the first ``num_global`` keys, in one softmax.

    q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] or None -> [B,H,N,E]; the queries are the last N of the
    S positions. The leading positions themselves see one another on both sides, whatever ``right`` is; Longformer
    computes their rows otherwise. Rows without a key give zeros.
    """
    n, s = q.shape[2], k.shape[2]
    keep = torch.ones(1, s, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
    # an ONNX file has one form for every length: the whole matrix
    if writes_onnx() or n <= BLOCK:
        i, j = torch.arange(s - n, s, device=q.device)[:, None], torch.arange(s, device=q.device)
        pattern = (j >= i - left) & (j <= i + right) | (j < num_global)
        return allowed_attention(q, k, v, keep[:, None, None] & pattern)

    left, right = min(left, s - 1), min(right, s - 1)
    if n == s and works_in_slices(q):
        return _sliced_attention(q, k, v, left, right, keep, num_global)
    q = F.pad(q, (0, 0, s - n, 0)) if s > n else q
    return _blocks_attention(q, k, v, left, right, keep, num_global)[:, :, s - n :]


def _blocks_attention(q: Tensor, k: Tensor, v: Tensor, left: int, right: int, keep: Tensor, num_global: int) -> Tensor:
    """As many keys as queries, keep bool [B or 1, N]: all windows at once."""
    batch, _, n, _ = q.shape
    allowed = window_mask(_in_band(keep, num_global), left, right, BLOCK).expand(batch, -1, -1, -1).flatten(0, 1)
    blocks = len(allowed) // batch
    keys, values = windows(k, left, right, BLOCK), windows(v, left, right, BLOCK)
    if num_global:
        leading_k, leading_v = (x[:, None, :, :num_global].expand(-1, blocks, -1, -1, -1).flatten(0, 1) for x in (k, v))
        leading_keep = keep[:, None, :num_global].expand(batch, blocks, -1).flatten(0, 1)
        keys, values, allowed = _with_leading(keys, values, allowed, leading_k, leading_v, leading_keep)
    out = F.scaled_dot_product_attention(windows(q, 0, 0, BLOCK), keys, values, attn_mask=allowed[:, None])
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :n]


def _sliced_attention(q: Tensor, k: Tensor, v: Tensor, left: int, right: int, keep: Tensor, num_global: int) -> Tensor:
    """The same without gradients: the windows of a slice of one sequence are views of its k and v."""
    out = v.new_empty(*q.shape[:3], v.shape[-1])
    band = _band(left, right, BLOCK, q.device)
    for item in range(q.shape[0]):
        kept = keep[item % len(keep)]
        for part in slices(q[:1]):
            rows = part.stop - part.start
            blocks = -(-rows // BLOCK)
            first, last = part.start - left, part.start + blocks * BLOCK + right
            in_band = _reach(_in_band(kept[None], num_global)[..., None], first, last)
            allowed = _overlapping(in_band, left + BLOCK + right, BLOCK)[:, 0].mT & band
            keys, values = (_overlapping(_reach(x[item], first, last), left + BLOCK + right, BLOCK) for x in (k, v))
            if num_global:
                leading_k, leading_v = (x[item, None, :, :num_global].expand(blocks, -1, -1, -1) for x in (k, v))
                leading_keep = kept[:num_global].expand(blocks, -1)
                keys, values, allowed = _with_leading(keys, values, allowed, leading_k, leading_v, leading_keep)
            queries = _overlapping(_reach(q[item], part.start, part.start + blocks * BLOCK), BLOCK, BLOCK)
            found = F.scaled_dot_product_attention(queries, keys, values, attn_mask=allowed[:, None])
            out[item, :, part] = found.transpose(0, 1).flatten(1, 2)[:, :rows]
    return out


def _with_leading(
    keys: Tensor, values: Tensor, allowed: Tensor, leading_k: Tensor, leading_v: Tensor, leading_keep: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The leading keys before the window of every block; allowed [windows, BLOCK, keys], leading_keep [windows, G]."""
    leading_keep = leading_keep[:, None].expand(-1, BLOCK, -1)
    return (
        torch.cat((leading_k, keys), dim=2),
        torch.cat((leading_v, values), dim=2),
        torch.cat((leading_keep, allowed), dim=-1),
    )


def _in_band(keep: Tensor, num_global: int) -> Tensor:
    """keep [B,N] without the leading keys: they are attended through their own columns, not a second time."""
    return keep & (torch.arange(keep.shape[1], device=keep.device) >= num_global)


def windows(x: Tensor, left: int, right: int, block: int) -> Tensor:
    """[B,H,N,C] -> [B blocks, H, left + block + right, C]: each block of positions with its neighbours, without copies.

    The batch lies in memory as one long row of blocks, so that windows are overlapping views of it. A window at the
    edge of one sequence therefore sees zeros or tokens of the next sequence: :func:`window_mask` excludes them.
    """
    batch, heads, n, channels = x.shape
    padded = -(-n // block) * block
    row = x.new_zeros(heads, left + batch * padded + right, channels)
    row[:, left : left + batch * padded].unflatten(1, (batch, padded))[:, :, :n] = x.transpose(0, 1)
    return _overlapping(row, left + block + right, block)


def window_mask(keep: Tensor, left: int, right: int, block: int) -> Tensor:
    """Which keys of its window a query may attend to: bool [B,N] -> [B, blocks, block, left + block + right]."""
    n = keep.shape[1]
    width, padded = left + block + right, -(-n // block) * block
    row = F.pad(keep, (left, right + padded - n))
    return row.unfold(1, width, block)[:, :, None] & _band(left, right, block, keep.device)


def _band(left: int, right: int, block: int, device: torch.device) -> Tensor:
    """Which places of its window lie in a query's band: bool [block, left + block + right]."""
    row, slot = torch.arange(block, device=device), torch.arange(left + block + right, device=device)
    distance = slot - row[:, None]  # from the leftmost key of the query's band
    return (distance >= 0) & (distance <= left + right)


def _reach(x: Tensor, first: int, last: int) -> Tensor:
    """Positions first ... last - 1 of x [H,N,C], zeros where there are none; a view where none is missing."""
    before, after = max(-first, 0), max(last - x.shape[1], 0)
    inside = x[:, max(first, 0) : last]
    return F.pad(inside, (0, 0, before, after)) if before or after else inside


def _overlapping(row: Tensor, width: int, block: int) -> Tensor:
    """row [H,L,C] -> [windows, H, width, C]: a window of ``width`` positions every ``block``, a view."""
    return row.unfold(1, width, block).permute(1, 0, 3, 2)
