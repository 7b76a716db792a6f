"""Multi-head attention around any mechanism of the zoo: of a sequence to itself, and to another."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.base import Attention
from cosformer.attention.recorded_state import extend_state
from cosformer.nn.projection import project
from cosformer.nn.short_convolution import ConvolvedState, ShortConvolution

Rotation = tuple[Tensor, Tensor]  # cos and sin, [B or 1, N, D]


class MultiHead(nn.Module):
    """Project to queries, keys and values, attend with ``attention`` head by head, project back.

    The mechanism brings the number of heads, their size, the longest sequence and causality; heads times their size
    need not be ``hidden_size``. ``num_key_heads``: fewer heads of keys and values, each serving several heads of
    queries. ``output_bias``: of the last projection, as ``bias`` unless given. ``qk_norm_eps``: RMSNorm on each head's
    queries and keys, as Qwen3 has it. ``short_convolution``: the width of a convolution over the tokens of queries,
    keys and values, 0 for none (:class:`ShortConvolution`). ``output_gate``: multiply what was attended to by ``silu``
    of a linear map of the input.
    """

    def __init__(
        self,
        attention: Attention,
        hidden_size: int,
        *,
        num_key_heads: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        qk_norm_eps: float | None = None,
        short_convolution: int = 0,
        output_gate: bool = False,
    ) -> None:
        super().__init__()
        heads, dim = attention.num_heads, attention.head_dim
        self.num_key_heads = num_key_heads or heads
        if heads % self.num_key_heads:
            raise ValueError(f"num_key_heads={num_key_heads} does not divide num_heads={heads}")
        self.query = nn.Linear(hidden_size, heads * dim, bias=bias)
        self.key = nn.Linear(hidden_size, self.num_key_heads * dim, bias=bias)
        self.value = nn.Linear(hidden_size, self.num_key_heads * dim, bias=bias)
        self.attention = attention
        self.output = nn.Linear(heads * dim, hidden_size, bias=bias if output_bias is None else output_bias)
        self.query_norm = self.key_norm = None
        if qk_norm_eps is not None:
            self.query_norm, self.key_norm = nn.RMSNorm(dim, eps=qk_norm_eps), nn.RMSNorm(dim, eps=qk_norm_eps)
        self.convolution = None
        if short_convolution:
            channels = (heads + 2 * self.num_key_heads) * dim
            self.convolution = ShortConvolution(channels, short_convolution, causal=attention.causal)
        self.gate = nn.Linear(hidden_size, heads * dim, bias=False) if output_gate else None

    @property
    def streaming(self) -> bool:
        """Whether a sequence can be processed in several calls with a carried state."""
        return self.attention.causal and hasattr(self.attention, "extend")

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
        *,
        rotation: Rotation | None = None,
        cu_seqlens: Tensor | None = None,
        group: Any = None,
    ) -> Any:
        """``x [B,N,C]``, ``key_mask`` bool ``[B,N]`` (True = may be attended) -> ``[B,N,C]``, or that and the state.

        ``state`` is what ``return_state`` gave for the tokens before these; None at the start of a sequence.
        ``rotation`` turns queries and keys by their positions. ``cu_seqlens``: packed sequences, B = 1, without mask
        and state. ``group``: a process group whose ranks hold a shard of the sequence each; ``cu_seqlens`` then
        describes the whole sequence.
        """
        if group is not None and (state is not None or return_state):
            raise ValueError("a sequence sharded over processes carries no state; call with return_state=False")
        if group is None and cu_seqlens is not None and (key_mask is not None or state is not None or return_state):
            raise ValueError("cu_seqlens packs whole sequences; it goes with neither key_mask nor a state")
        if state is not None and not return_state:
            raise ValueError("state given without return_state=True: these tokens would be lost from it")
        attention, convolution = self.attention, self.convolution
        if return_state and not self.streaming:
            name = type(attention).__name__
            raise ValueError(f"{name} (causal={attention.causal}) carries no state; call it without return_state")
        rows, state = self._take_apart(state)
        projected = self._project(x)
        if convolution is not None:
            projected, rows = self._convolve(projected, key_mask, rows, cu_seqlens, group)
        q, k, v = self._as_heads(projected, rotation)
        if return_state:
            extend: Any = attention.extend
            out, state = extend_state(extend, q, k, v, state, key_mask)
            if convolution is not None and rows is not None:
                state = ConvolvedState.after(rows, convolution.before, state)
            return self._merge(out, x), state
        if group is not None:
            out = self.attention.sharded(q, k, v, group, key_mask, cu_seqlens)
        elif cu_seqlens is not None:
            out = self.attention.packed(q, k, v, cu_seqlens)
        else:
            out = self.attention(q, k, v, key_mask)
        return self._merge(out, x)

    def heads(
        self, x: Tensor, key_mask: Tensor | None = None, rotation: Rotation | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``[B,H,N,D]``, keys and values as the mechanism gets them, of one sequence a row."""
        projected = self._project(x)
        if self.convolution is not None:
            projected, _ = self._convolve(projected, key_mask)
        return self._as_heads(projected, rotation)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries ``[B,N,H*D]``, keys and values ``[B,N,Hk*D]``."""
        return project(self.query, x), project(self.key, x), project(self.value, x)

    def _convolve(
        self,
        projected: tuple[Tensor, ...],
        key_mask: Tensor | None,
        before: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        group: Any = None,
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Queries, keys and values after the convolution, and the row of all of them that it went over."""
        assert self.convolution is not None
        x = torch.cat(projected, -1)
        if key_mask is not None:  # a bias would make something of padding
            x = x.masked_fill(~key_mask[..., None], 0)
        reach, first = self.convolution, 0
        after = x.new_zeros(x.shape[0], reach.after, x.shape[2])
        if group is not None:
            from cosformer.ops.neighbours import neighbours  # torch.distributed is loaded by those who use it

            before, after, first = neighbours(x, reach.before, reach.after, group)
        elif before is None:
            before = x.new_zeros(x.shape[0], reach.before, x.shape[2])
        row = torch.cat((before.to(x.dtype), x, after), 1)
        # a state that can take tokens back has more rows than the convolution looks back at
        out = self.convolution(row[:, before.shape[1] - reach.before :], cu_seqlens, first)
        return out.split([part.shape[-1] for part in projected], -1), row

    def _take_apart(self, state: Any) -> tuple[Tensor | None, Any]:
        """The rows that the convolution looks back at, if there were any, and the mechanism's own state."""
        if isinstance(state, ConvolvedState):
            if self.convolution is None:
                raise ValueError("the state is that of a model with short_convolution, and this one has none")
            return state.rows, state.state
        if self.convolution is not None and state is not None and state.seen:
            raise ValueError("the state is that of a model without short_convolution, and this one has one")
        return None, state

    def _as_heads(self, projected: tuple[Tensor, ...], rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = projected
        q, k, v = self._split(q), self._split(k), self._split(v)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        groups = q.shape[1] // k.shape[1]
        if groups > 1 and not self.attention.grouped:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return q, k, v

    def _split(self, x: Tensor) -> Tensor:
        """[B,N,heads*D] -> [B,heads,N,D]"""
        batch, n, channels = x.shape
        dim = self.attention.head_dim
        if n == 1:  # contiguous, as the step of one token wants it
            return x.view(batch, channels // dim, 1, dim)
        return x.view(batch, n, channels // dim, dim).transpose(1, 2)

    def _merge(self, out: Tensor, x: Tensor) -> Tensor:
        """What was attended to, ``[B,H,N,D]``, for the input ``x [B,N,C]`` -> ``[B,N,C]``"""
        out = out.transpose(1, 2).flatten(2)
        if self.gate is not None:
            out = out * F.silu(project(self.gate, x))
        return project(self.output, out)


class CrossAttention(MultiHead):
    """Queries from one sequence, keys and values from another, whose summary is computed once and used at every step.

    ``attention`` is a mechanism built with ``causal=False`` that has ``summarize`` and ``attend_state``. cosFormer's
    summary is a pair of sums of one size; queries are compared with keys by their positions, as Algorithm 1 of the
    paper does.
    """

    def __init__(self, attention: Attention, hidden_size: int, **options: Any) -> None:
        if attention.causal or not hasattr(attention, "summarize"):
            raise ValueError(
                f"{type(attention).__name__} (causal={attention.causal}) has no form of cross-attention that a decoder "
                "can continue; use cosformer or softmax, built with causal=False"
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
        return self._merge(self.attention.attend_state(q, state, first), x)  # pyright: ignore[reportCallIssue]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotary positions (Su et al. 2021) on ``x [B,H,N,D]``; channel i is paired with channel i + D/2."""
    cos, sin = (part.unsqueeze(1).to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
