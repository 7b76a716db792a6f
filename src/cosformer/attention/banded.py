"""Softmax attention on a band of the attention matrix, computed block by block: memory grows with N times the width."""

import torch
import torch.nn.functional as F
from torch import Tensor

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
    if n > BLOCK:
        q = F.pad(q, (0, 0, s - n, 0)) if s > n else q
        return _blocks_attention(q, k, v, left, right, keep, num_global)[:, :, s - n :]

    i, j = torch.arange(s - n, s, device=q.device)[:, None], torch.arange(s, device=q.device)
    pattern = (j >= i - left) & (j <= i + right) | (j < num_global)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None] & pattern)


def _blocks_attention(q: Tensor, k: Tensor, v: Tensor, left: int, right: int, keep: Tensor, num_global: int) -> Tensor:
    """As many keys as queries; keep is bool [B or 1, N]."""
    batch, _, n, _ = q.shape
    blocks = -(-n // BLOCK)
    left, right = min(left, n - 1), min(right, n - 1)
    # a leading key is attended through its own column, so the band must not count it a second time
    in_band = keep & (torch.arange(n, device=q.device) >= num_global)
    allowed = window_mask(in_band, left, right, BLOCK)

    keys, values = windows(k, left, right, BLOCK), windows(v, left, right, BLOCK)
    if num_global:
        leading = keep[:, None, None, :num_global].expand(-1, blocks, BLOCK, -1)
        allowed = torch.cat((leading, allowed), dim=-1)
        keys = torch.cat((_repeat(k[:, :, :num_global], blocks), keys), dim=2)
        values = torch.cat((_repeat(v[:, :, :num_global], blocks), values), dim=2)

    allowed = allowed.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]  # [B blocks, 1, BLOCK, keys]
    out = F.scaled_dot_product_attention(windows(q, 0, 0, BLOCK), keys, values, attn_mask=allowed)
    return out.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :n]


def windows(x: Tensor, left: int, right: int, block: int) -> Tensor:
    """[B,H,N,C] -> [B blocks, H, left + block + right, C]: each block of positions with its neighbours, without copies.

    The batch lies in memory as one long row of blocks, so that windows are overlapping views of it. A window at the
    edge of one sequence therefore sees zeros or tokens of the next sequence: :func:`window_mask` excludes them.
    """
    batch, heads, n, channels = x.shape
    padded = -(-n // block) * block
    row = x.new_zeros(heads, left + batch * padded + right, channels)
    row[:, left : left + batch * padded].unflatten(1, (batch, padded))[:, :, :n] = x.transpose(0, 1)
    return row.unfold(1, left + block + right, block).permute(1, 0, 3, 2)


def window_mask(keep: Tensor, left: int, right: int, block: int) -> Tensor:
    """Which keys of its window a query may attend to: bool [B,N] -> [B, blocks, block, left + block + right]."""
    n = keep.shape[1]
    width, padded = left + block + right, -(-n // block) * block
    row, slot = torch.arange(block, device=keep.device), torch.arange(width, device=keep.device)
    distance = slot - row[:, None]  # from the leftmost key of the query's band
    band = (distance >= 0) & (distance <= left + right)
    return F.pad(keep, (left, right + padded - n)).unfold(1, width, block)[:, :, None] & band


def _repeat(x: Tensor, blocks: int) -> Tensor:
    """[B,H,G,C] -> [B blocks, H, G, C]."""
    return x[:, None].expand(-1, blocks, -1, -1, -1).flatten(0, 1)
