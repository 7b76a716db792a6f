"""One transformer block: attention and feed-forward, each with its residual and its norm."""

from typing import Any

from torch import Tensor, nn

from cosformer.nn.feed_forward import FeedForward
from cosformer.nn.multihead import CrossAttention, MultiHead

NORMS = ("pre", "post")
NORM_TYPES: dict[str, type[nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class Block(nn.Module):
    """``norm="pre"``: ``x + f(LN(x))``; ``norm="post"``: ``LN(x + f(x))``. ``dropout`` acts on each branch's output.

    ``norm_type``: ``layer`` (LayerNorm) or ``rms`` (RMSNorm). ``cross``: attention to another sequence, between the
    two.
    """

    def __init__(
        self,
        attention: MultiHead,
        feed_forward: FeedForward,
        hidden_size: int,
        *,
        cross: CrossAttention | None = None,
        norm: str = "pre",
        norm_type: str = "layer",
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm={norm!r}; known: {', '.join(NORMS)}")
        if norm_type not in NORM_TYPES:
            raise ValueError(f"norm_type={norm_type!r}; known: {', '.join(NORM_TYPES)}")
        make = NORM_TYPES[norm_type]
        self.norm = norm
        self.attention = attention
        self.attention_norm = make(hidden_size, eps=norm_eps)
        self.cross = cross
        self.cross_norm = None if cross is None else make(hidden_size, eps=norm_eps)
        self.feed_forward = feed_forward
        self.feed_forward_norm = make(hidden_size, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        *,
        memory: Any = None,
        first: int = 0,
        **options: Any,
    ) -> Any:
        """``x [B,N,C]`` -> ``[B,N,C]``, or that and the attention's state; arguments as :class:`MultiHead` takes them.

        For the cross-attention: ``source [B,S,C]`` and its mask, or ``memory``, what ``cross.summarize`` gave for them;
        ``first``: the position of the first token.
        """
        pre = self.norm == "pre"
        out = self.attention(self.attention_norm(x) if pre else x, key_mask, state, return_state, **options)
        out, state = out if return_state else (out, None)
        x = self._add(x, out, self.attention_norm)
        if self.cross is not None and self.cross_norm is not None:
            if memory is None:
                assert source is not None
                memory = self.cross.summarize(source, source_mask)
            x = self._add(x, self.cross(self.cross_norm(x) if pre else x, memory, first), self.cross_norm)
        x = self._add(x, self.feed_forward(self.feed_forward_norm(x) if pre else x), self.feed_forward_norm)
        return (x, state) if return_state else x

    def _add(self, x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
        dropout = self.dropout
        x = x + (dropout(branch) if dropout.training else branch)
        return norm(x) if self.norm == "post" else x
