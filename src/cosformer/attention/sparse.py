"""The patterns of the Sparse Transformer: a neighbourhood, and a few far columns."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.banded import window_mask, windows
from cosformer.attention.base import Attention, Traits

PATTERNS = ("fixed", "strided")


class Sparse(Attention):
    """Softmax over the union of the two sub-patterns of Child et al. (their "merged" form), l = ``stride``:

    * ``"fixed"``: keys of the query's own block of l positions, and the last ``columns`` keys of every block;
    * ``"strided"``: keys with |i - j| < l, and keys a multiple of l away.

    Causal: their part with j <= i, as in the paper. ``columns`` (32 unless given) belongs to "fixed" alone.
    Unless given, l is 128, or more where that balances the two sub-patterns at ``max_len`` ("fixed": beyond 512 tokens,
    "strided": beyond 16,384): with a constant l the cost would grow with N^2.
    """

    traits = Traits(
        paper="Child et al. 2019", time="N^1.5 D", memory="N^1.5", causal=True, cross=False, streaming=False
    )

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        pattern: str = "fixed",
        stride: int | None = None,
        columns: int | None = None,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        if pattern not in PATTERNS:
            raise ValueError(f"pattern={pattern!r}; known: {', '.join(PATTERNS)}")
        if pattern == "strided" and columns is not None:
            raise ValueError(f"columns={columns} has no meaning in the strided pattern; leave it out")
        columns = 1 if pattern == "strided" else 32 if columns is None else columns
        if stride is None:
            stride = max(128, columns, math.isqrt(columns * max_len))
        if not 1 <= columns <= stride:
            raise ValueError(f"columns={columns}, stride={stride}; need 1 <= columns <= stride")
        self.pattern, self.stride, self.columns = pattern, stride, columns

    def extra_repr(self) -> str:
        columns = f", columns={self.columns}" if self.pattern == "fixed" else ""
        return f"{super().extra_repr()}, pattern={self.pattern!r}, stride={self.stride}{columns}"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q, k [B,H,N,D], v [B,H,N,E], key_mask bool [B,N] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        if self.pattern == "fixed":
            return self._fixed(q, k, v, key_mask)
        return self._strided(q, k, v, key_mask)

    def _fixed(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """One block of queries after the other: the key and value columns that all blocks share are never repeated
        for more than one block at a time."""
        n, l, c = q.shape[2], self.stride, self.columns
        position = torch.arange(n, device="cpu")  # how many are far is known before anything runs on a device
        far, position = position[position % l >= l - c].to(q.device), position.to(q.device)
        far_k, far_v = k.index_select(2, far), v.index_select(2, far)

        out = []
        for block, (rows, near_k, near_v) in enumerate(zip(q.split(l, 2), k.split(l, 2), v.split(l, 2), strict=True)):
            near = position[block * l : (block + 1) * l]
            # far columns inside the own block are in ``near`` already, causal rows see none after it
            before, after = slice(block * c), slice(len(far) if self.causal else (block + 1) * c, None)
            keys = torch.cat((far_k[:, :, before], near_k, far_k[:, :, after]), dim=2)
            values = torch.cat((far_v[:, :, before], near_v, far_v[:, :, after]), dim=2)
            attended = torch.cat((far[before], near, far[after]))
            allowed = None if key_mask is None else key_mask[:, None, None, attended]
            if self.causal:
                earlier = attended <= near[:, None]
                allowed = earlier if allowed is None else allowed & earlier
            out.append(F.scaled_dot_product_attention(rows, keys, values, attn_mask=allowed))
        return torch.cat(out, dim=2)

    def _strided(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Scores of the band and of the columns side by side, [B blocks, H, l, 3 l + blocks], and one softmax."""
        batch, n, l = q.shape[0], q.shape[2], self.stride
        blocks = -(-n // l)
        left, right = l - 1, 0 if self.causal else l - 1
        keep = torch.ones(1, n, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        block = torch.arange(blocks, device=q.device)
        other = block < block[:, None] if self.causal else block != block[:, None]  # the own block is in the band
        column = F.pad(keep, (0, blocks * l - n)).unflatten(1, (blocks, l)).mT  # [B or 1, l, blocks]
        allowed = torch.cat((window_mask(keep, left, right, l), column[:, None] & other[:, None]), dim=-1)
        allowed = allowed.expand(batch, -1, -1, -1).flatten(0, 1)[:, None]

        def columns(x: Tensor) -> Tensor:  # [B,H,N,C] -> [B,H,l,blocks,C]: positions of equal remainder together
            return F.pad(x, (0, 0, 0, blocks * l - n)).unflatten(2, (blocks, l)).transpose(2, 3)

        q = q * q.shape[-1] ** -0.5
        band_scores = windows(q, 0, 0, l) @ windows(k, left, right, l).mT
        column_scores = (columns(q) @ columns(k).mT).permute(0, 3, 1, 2, 4).flatten(0, 1)
        scores = torch.cat((band_scores, column_scores), dim=-1)
        scores.masked_fill_(~allowed, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
        band, column = weights.split((left + l + right, blocks), dim=-1)

        from_band = (band @ windows(v, left, right, l)).unflatten(0, (batch, blocks)).transpose(1, 2)
        from_columns = column.unflatten(0, (batch, blocks)).permute(0, 2, 3, 1, 4) @ columns(v)
        out = (from_band + from_columns.transpose(2, 3)).masked_fill(
            ~allowed.any(-1, keepdim=True).unflatten(0, (batch, blocks)).transpose(1, 2), 0
        )
        return out.flatten(2, 3)[:, :, :n]
