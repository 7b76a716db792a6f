"""Multi-head attention of one sequence to another: a decoder's to what its encoder read."""

from typing import Any

from torch import Tensor

from cosformer.attention.base import Attention
from cosformer.nn.multihead import MultiHead


class CrossAttention(MultiHead):
    """Queries from one sequence, keys and values from another, whose summary is made once and used at every step.

    ``attention`` is a mechanism built with ``causal=False`` that has ``summarize`` and ``attend_state``. cosFormer's summary
    is a pair of sums of one size; queries are compared with keys by their positions, as Algorithm 1 of the paper does.
    """

    def __init__(self, attention: Attention, hidden_size: int, **options: Any) -> None:
        if attention.causal or not hasattr(attention, "summarize"):
            raise ValueError(
                f"{type(attention).__name__} (causal={attention.causal}) has no form of cross-attention that a decoder can"
                " continue; use cosformer or softmax, built with causal=False"
            )
        super().__init__(attention, hidden_size, **options)

    def summarize(self, memory: Tensor, key_mask: Tensor | None = None) -> Any:
        """What was read, ``[B,S,C]`` with ``key_mask`` bool ``[B,S]``, as a state for :meth:`forward`."""
        k, v = self._split(self.key(memory)), self._split(self.value(memory))
        if self.key_norm is not None:
            k = self.key_norm(k)
        return self.attention.summarize(k, v, key_mask)  # pyright: ignore[reportCallIssue]

    def forward(self, x: Tensor, state: Any, first: int = 0) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """``x [B,N,C]`` at positions ``first``, ``first + 1``, ... -> ``[B,N,C]``."""
        q = self._split(self.query(x))
        if self.query_norm is not None:
            q = self.query_norm(q)
        return self._merge(self.attention.attend_state(q, state, first))  # pyright: ignore[reportCallIssue]
