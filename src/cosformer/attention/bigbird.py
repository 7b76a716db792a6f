"""BigBird: blocks that attend to their neighbours, to the first and last block and to a few random ones."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention, Traits
from cosformer.attention.slices import slice_length, works_in_slices

DRAWS = 2**31  # a random number is an integer below this; times a number of blocks it still fits into 64 bits


class Bigbird(Attention):
    """The ITC form. Cut into blocks of ``block``, a block of queries attends to the first and the last block, to itself
    and its two neighbours, and to ``num_random`` others; the first and the last block attend to everything.

    The random choice differs between heads and blocks. It is drawn once from ``seed`` (default 0) and kept in a buffer
    of uniform numbers that :meth:`random_blocks` turns into blocks of the length at hand; short sequences that have
    fewer than ``num_random`` blocks left take those they have.
    """

    traits = Traits(
        paper="Zaheer et al. 2020",
        time="N (5 + r) b D",
        memory="N (5 + r) D",
        causal=False,
        cross=False,
        streaming=False,
        deviations=(
            "padding: its last block is the last of the tensor, padded or not, so a row depends on how far its batch "
            "is padded",
        ),
    )
    draws: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        block: int = 64,
        num_random: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        if block < 1 or num_random < 0:
            raise ValueError(f"block={block}, num_random={num_random}; they must be at least 1 and 0")
        self.block, self.num_random = block, num_random
        # integers, because a change of the module's dtype must not change the choice
        draws = torch.empty(num_heads, -(-max_len // block), num_random, dtype=torch.int64)
        self.register_buffer("draws", draws.random_(0, DRAWS, generator=torch.Generator().manual_seed(seed)))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, block={self.block}, num_random={self.num_random}"

    def random_blocks(self, blocks: int) -> tuple[Tensor, Tensor]:
        """For each inner block 1 ... blocks-2: which blocks it attends to by chance, int64 [H, blocks-2, R], and which
        of these entries count, bool [blocks-2, R]. They are distinct, and never global nor neighbours."""
        row = torch.arange(1, blocks - 1, device=self.draws.device)[:, None]
        low, high = (row - 1).clamp(min=1), (row + 1).clamp(max=blocks - 2)  # the window without the global blocks
        legal = blocks - 2 - (high - low + 1)  # how many blocks there are to choose from
        ranks: list[Tensor] = []
        for choice in range(self.num_random):
            # the n-th block still free, counted from the left: step over each smaller one that is taken
            rank = self.draws[:, 1 : blocks - 1, choice] * (legal - choice).clamp(min=1).mT // DRAWS
            for taken in torch.stack(ranks, -1).sort(-1).values.unbind(-1) if ranks else ():
                rank = rank + (rank >= taken)
            ranks.append(rank)
        if not ranks:
            return row.new_empty(self.num_heads, len(row), 0), row.new_empty(len(row), 0, dtype=torch.bool)
        block = 1 + torch.stack(ranks, -1)
        block = torch.where(block < low, block, block + (high - low + 1))
        counts = torch.arange(self.num_random, device=row.device) < legal
        return block.where(counts, 0), counts

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q, k [B,H,N,D], v [B,H,N,E], key_mask bool [B,N] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        n, block = q.shape[2], self.block
        blocks = -(-n // block)
        everything = None if key_mask is None else key_mask[:, None, None]
        if blocks <= 2:  # only the two global blocks, which attend to everything
            return F.scaled_dot_product_attention(q, k, v, attn_mask=everything)
        first, inner, last = q.split((block, (blocks - 2) * block, n - (blocks - 1) * block), dim=2)
        ends = F.scaled_dot_product_attention(torch.cat((first, last), dim=2), k, v, attn_mask=everything)

        keep = torch.ones(1, n, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        if blocks * block > n:
            k, v = (F.pad(x, (0, 0, 0, blocks * block - n)) for x in (k, v))
            keep = F.pad(keep, (0, blocks * block - n))
        index, counts = self._attended(blocks)  # [H, blocks-2, 5+R] both
        if not works_in_slices(q):
            rows = self._inner_rows(inner, k, v, keep, index, counts)
            return torch.cat((ends[:, :, :block], rows, ends[:, :, block:]), dim=2)

        out = v.new_empty(*q.shape[:3], v.shape[-1])
        out[:, :, :block], out[:, :, (blocks - 1) * block :] = ends[:, :, :block], ends[:, :, block:]
        step = max(1, slice_length(q) // (block * index.shape[-1]))  # a row gathers this many blocks of keys
        for start in range(0, blocks - 2, step):
            part = slice(start, min(start + step, blocks - 2))
            rows = slice((part.start + 1) * block, (part.stop + 1) * block)
            out[:, :, rows] = self._inner_rows(q[:, :, rows], k, v, keep, index[:, part], counts[:, part])
        return out

    def _inner_rows(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, index: Tensor, counts: Tensor) -> Tensor:
        """Some inner blocks of queries: q [B,H,rows block,D]; k, v and keep [B or 1,N] of whole blocks; index and
        counts [H,rows,5+R] as :meth:`_attended` gives them."""
        batch, heads, n, _ = k.shape
        block, blocks, rows = self.block, n // self.block, index.shape[1]
        # [B, H, rows, (5+R) block]: entries that count, of keys that may be attended
        allowed = keep.unflatten(1, (blocks, block))[:, index] & counts[..., None]
        allowed = allowed.flatten(-2).expand(batch, -1, -1, -1).flatten(0, 1)[:, :, None]
        picks = (index + blocks * torch.arange(heads, device=q.device)[:, None, None]).flatten()

        def gather(x: Tensor) -> Tensor:  # [B,H,N,C] -> [B H, rows, (5+R) block, C]
            picked = x.reshape(batch, heads * blocks, block * x.shape[-1]).index_select(1, picks)
            return picked.view(batch * heads, rows, -1, x.shape[-1])

        queries = q.reshape(batch * heads, rows, block, -1)
        out = F.scaled_dot_product_attention(queries, gather(k), gather(v), attn_mask=allowed)
        return out.reshape(batch, heads, rows * block, -1)

    def _attended(self, blocks: int) -> tuple[Tensor, Tensor]:
        """The blocks each inner block attends to, [H, blocks-2, 5+R], and whether an entry counts: a neighbour that is
        a global block is there twice and counts once."""
        chance, chance_counts = self.random_blocks(blocks)
        row = torch.arange(1, blocks - 1, device=chance.device)[:, None]
        window = torch.cat((row - 1, row, row + 1), dim=1)
        ends = torch.tensor((0, blocks - 1), device=row.device).expand(len(row), -1)
        fixed = torch.cat((ends, window), dim=1).expand(self.num_heads, -1, -1)
        counts = torch.cat((ends >= 0, (window > 0) & (window < blocks - 1), chance_counts), dim=1)
        return torch.cat((fixed, chance), dim=2), counts.expand(self.num_heads, -1, -1)
