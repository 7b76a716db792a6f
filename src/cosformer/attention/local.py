"""Sliding-window attention."""

import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.banded import band_attention
from cosformer.attention.base import Attention, Traits
from cosformer.attention.key_value_state import KeyValueState


class Local(Attention):
    """Softmax over the keys at most ``window`` positions away: |i - j| <= w, or 0 <= i - j <= w when causal.

    A true sliding window: no block of the sequence is special. ``window`` is 128 unless given, and 64 where ``max_len``
    is at most 512. The streaming state keeps the last ``window`` keys.
    """

    traits = Traits(
        paper="Luong et al. 2015; Parmar et al. 2018",
        time="N w D",
        memory="N w",
        causal=True,
        cross=False,
        streaming=True,
    )

    def __init__(self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, window: int | None = None) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        if window is None:
            window = 128 if max_len > 512 else 64
        if window < 0:
            raise ValueError(f"window={window}; it counts the keys on each side of a query and cannot be negative")
        self.window = window

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, window={self.window}"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q, k [B,H,N,D], v [B,H,N,E], key_mask bool [B,N] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        return band_attention(q, k, v, left=self.window, right=0 if self.causal else self.window, key_mask=key_mask)

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: KeyValueState | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, KeyValueState]:
        """The next n tokens after ``state``, the last ``window`` keys and values: (out [B,H,n,E], new state)."""
        self.check_extend(q, k, v, key_mask, state)
        state = KeyValueState.extended(state, k, v, key_mask)
        if q.shape[2] == 1 and state.key_mask is None and state.k.shape[2] <= self.window + 1:  # all in its window
            out = F.scaled_dot_product_attention(q, state.k, state.v)
        else:
            out = band_attention(q, state.k, state.v, left=self.window, right=0, key_mask=state.key_mask)
        return out, state.last(self.window)
