"""Softmax attention, the one the others approximate or restrict."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Attention, Traits
from cosformer.attention.key_value_state import KeyValueState
from cosformer.ops.masked_softmax import allowed_attention

ROWS = 512  # query rows whose mask is held at once when causality and a key mask meet


class Softmax(Attention):
    """``O = softmax(Q K^T / sqrt(D)) V``, by torch's fused kernels: time N S D, memory linear in N."""

    traits = Traits(paper="Vaswani et al. 2017", time="N^2 D", memory="N D", causal=True, cross=True, streaming=True)
    grouped = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q [B,H,N,D], k [B,H,S,D], v [B,H,S,E], key_mask bool [B,S] -> [B,H,N,E]."""
        self.check(q, k, v, key_mask)
        if self.causal:
            return _causal(q, k, v, key_mask)
        return _attend(q, k, v, None if key_mask is None else key_mask[:, None, None])

    def summarize(self, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> KeyValueState:
        """Keys and values to be attended to later, by any number of :meth:`attend_state`."""
        return KeyValueState.extended(None, k, v, key_mask)

    def attend_state(self, q: Tensor, state: KeyValueState, first: int = 0) -> Tensor:
        """Cross-attention to what :meth:`summarize` gave; softmax does not ask for positions."""
        return _attend(q, state.k, state.v, None if state.key_mask is None else state.key_mask[:, None, None])

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: KeyValueState | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, KeyValueState]:
        """The next n tokens after ``state``, a cache of every key and value so far: (out [B,H,n,E], new state)."""
        self.check_extend(q, k, v, key_mask, state)
        state = KeyValueState.extended(state, k, v, key_mask)
        return _causal(q, state.k, state.v, state.key_mask), state


def _causal(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """The queries are the last N of the S positions."""
    n, s = q.shape[2], k.shape[2]
    if key_mask is None and n == s:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])
    # the fused kernels take a triangle or a mask, not both: build the mask for a few rows at a time, and leave out
    # the keys that none of them may see
    out = []
    for rows in q.split(ROWS, dim=2):
        first = s - n + sum(piece.shape[2] for piece in out)
        seen = first + rows.shape[2]
        positions = torch.arange(seen, device=q.device)
        allowed = positions <= positions[first:, None]
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :seen]
        out.append(_attend(rows, k[:, :, :seen], v[:, :, :seen], allowed))
    return torch.cat(out, dim=2)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    grouped = k.shape[1] != q.shape[1]
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)
    return allowed_attention(q, k, v, mask, enable_gqa=grouped)
