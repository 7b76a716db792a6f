"""One transformer block: attention and feed-forward, each with its residual and its norm."""

from typing import Any

from torch import Tensor, nn

from cosformer.nn.feed_forward import FeedForward
from cosformer.nn.multihead import MultiHead

NORMS = ("pre", "post")


class Block(nn.Module):
    """``norm="pre"``: ``x + f(LN(x))``; ``norm="post"``: ``LN(x + f(x))``. ``dropout`` acts on each branch's output."""

    def __init__(
        self,
        attention: MultiHead,
        feed_forward: FeedForward,
        hidden_size: int,
        *,
        norm: str = "pre",
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm={norm!r}; known: {', '.join(NORMS)}")
        self.norm = norm
        self.attention = attention
        self.attention_norm = nn.LayerNorm(hidden_size, eps=norm_eps)
        self.feed_forward = feed_forward
        self.feed_forward_norm = nn.LayerNorm(hidden_size, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, state: Any = None, return_state: bool = False) -> Any:
        """``x [B,N,C]`` -> ``[B,N,C]``, or that and the attention's state; arguments as :class:`MultiHead` takes them."""
        if self.norm == "pre":
            out, state = self._attend(self.attention_norm(x), key_mask, state, return_state)
            x = x + self.dropout(out)
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            out, state = self._attend(x, key_mask, state, return_state)
            x = self.attention_norm(x + self.dropout(out))
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return (x, state) if return_state else x

    def _attend(self, x: Tensor, key_mask: Tensor | None, state: Any, return_state: bool) -> tuple[Tensor, Any]:
        if return_state:
            return self.attention(x, key_mask, state, True)
        return self.attention(x, key_mask, state), None
