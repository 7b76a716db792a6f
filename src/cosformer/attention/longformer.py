"""Longformer: a sliding window, and a few leading tokens that attend, and are attended to, everywhere."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.banded import band_attention
from cosformer.attention.base import Attention, Traits


class Longformer(Attention):
    """Softmax over |i - j| <= window / 2 and the first ``num_global`` keys; causal: over their part with j <= i.

    The rows of the global tokens attend to every key (causal: every earlier one) with queries, keys and values of
    their own. The paper projects these from the layer input; a mechanism sees only q, k and v, so here they are learned
    per-head D x D maps of q, k and v that start at the identity. They need values of D channels.
    """

    traits = Traits(
        paper="Beltagy et al. 2020", time="N (w + g) D", memory="N (w + g)", causal=True, cross=False, streaming=False
    )

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        window: int = 512,
        num_global: int = 0,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        if window < 2 or window % 2:
            raise ValueError(f"window={window}; it counts both sides together and must be even and at least 2")
        if not 0 <= num_global <= max_len:
            raise ValueError(f"num_global={num_global}; it must lie between 0 and max_len={max_len}")
        self.window, self.num_global = window, num_global
        if num_global:
            # [query, key, value][H, D, D]
            self.global_maps = nn.Parameter(torch.empty(3, num_heads, head_dim, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.num_global:
            with torch.no_grad():
                self.global_maps.copy_(torch.eye(self.head_dim))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, window={self.window}, num_global={self.num_global}"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q, k [B,H,N,D], v [B,H,N,E], key_mask bool [B,N] -> [B,H,N,E]; E = D where there are global tokens."""
        self.check(q, k, v, key_mask)
        if self.num_global and v.shape[-1] != self.head_dim:
            limit = f"the value map of the global tokens is {self.head_dim} x {self.head_dim}"
            raise ValueError(f"v has {v.shape[-1]} channels, but {limit}; give as many or build with num_global=0")
        half = self.window // 2
        right = 0 if self.causal else half
        out = band_attention(q, k, v, left=half, right=right, key_mask=key_mask, num_global=self.num_global)
        if not self.num_global:
            return out
        return torch.cat((self._global_rows(q, k, v, key_mask), out[:, :, self.num_global :]), dim=2)

    def _global_rows(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """The first ``num_global`` rows of the output."""
        rows = min(self.num_global, q.shape[2])
        if self.causal:  # later keys are out of reach of these rows
            k, v = k[:, :, :rows], v[:, :, :rows]
            key_mask = None if key_mask is None else key_mask[:, :rows]
        allowed = None if key_mask is None else key_mask[:, None, None]
        if self.causal:
            triangle = torch.ones(rows, rows, dtype=torch.bool, device=q.device).tril()
            allowed = triangle if allowed is None else allowed & triangle
        # (q Wq)(k Wk)^T = (q Wq Wk^T) k^T and P (v Wv) = (P v) Wv: the maps touch these few rows, never all keys
        query_map, key_map, value_map = self.global_maps
        queries = q[:, :, :rows] @ query_map @ key_map.mT
        return F.scaled_dot_product_attention(queries, k, v, attn_mask=allowed) @ value_map
