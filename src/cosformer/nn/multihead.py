"""Multi-head self-attention around any mechanism of the zoo."""

from typing import Any

from torch import Tensor, nn

from cosformer.attention.base import Attention


class MultiHead(nn.Module):
    """Project to queries, keys and values, attend with ``attention`` head by head, project back.

    The mechanism brings the number of heads, their size, the longest sequence and causality; heads times their size
    need not be ``hidden_size``.
    """

    def __init__(self, attention: Attention, hidden_size: int, *, bias: bool = True) -> None:
        super().__init__()
        inner = attention.num_heads * attention.head_dim
        self.query = nn.Linear(hidden_size, inner, bias=bias)
        self.key = nn.Linear(hidden_size, inner, bias=bias)
        self.value = nn.Linear(hidden_size, inner, bias=bias)
        self.attention = attention
        self.output = nn.Linear(inner, hidden_size, bias=bias)

    @property
    def streaming(self) -> bool:
        """Whether this can carry a state from one piece of a sequence to the next."""
        return self.attention.causal and hasattr(self.attention, "extend")

    def forward(self, x: Tensor, key_mask: Tensor | None = None, state: Any = None, return_state: bool = False) -> Any:
        """``x [B,N,C]``, ``key_mask`` bool ``[B,N]`` (True = may be attended) -> ``[B,N,C]``, or that and the state.

        ``state`` is what ``return_state`` gave for the tokens before these; None at the start of a sequence.
        """
        q, k, v = (self._split(projection(x)) for projection in (self.query, self.key, self.value))
        if not return_state:
            if state is not None:
                raise ValueError("state given without return_state=True: these tokens would be lost from it")
            return self._merge(self.attention(q, k, v, key_mask))
        if not self.streaming:
            name = type(self.attention).__name__
            raise ValueError(f"{name} (causal={self.attention.causal}) carries no state; call it without return_state")
        out, state = self.attention.extend(q, k, v, state, key_mask)  # pyright: ignore[reportCallIssue]
        return self._merge(out), state

    def _split(self, x: Tensor) -> Tensor:
        """[B,N,H*D] -> [B,H,N,D]"""
        return x.unflatten(-1, (self.attention.num_heads, self.attention.head_dim)).transpose(1, 2)

    def _merge(self, x: Tensor) -> Tensor:
        """[B,H,N,D] -> [B,N,C]"""
        return self.output(x.transpose(1, 2).flatten(2))
