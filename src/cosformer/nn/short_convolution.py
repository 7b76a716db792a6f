"""A depthwise convolution over a few neighbouring tokens, and its state between windows."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.attention.key_value_state import KeyValueState
from cosformer.attention.recorded_state import RecordedState
from cosformer.ops.state import LinearState


class ShortConvolution(nn.Module):
    """Each channel's weighted sum over ``width`` neighbouring tokens; it starts as the identity.

    causal: the token itself and the ``width - 1`` before it. Otherwise the window is centred on the token; one of even
    width reaches one token further to the left than to the right.
    """

    def __init__(self, channels: int, width: int, *, causal: bool) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width={width}; a convolution spans at least 1 token, the token itself")
        self.before = width - 1 if causal else width // 2
        self.after = width - 1 - self.before
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(width, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the weights to the identity."""
        with torch.no_grad():
            self.weight.copy_(self.identity())

    def identity(self) -> Tensor:
        """The weights of the identity."""
        weight = torch.zeros_like(self.weight)
        weight[self.before] = 1
        return weight

    def extra_repr(self) -> str:
        width, channels = self.weight.shape
        return f"channels={channels}, width={width}, causal={self.causal}"

    def forward(self, row: Tensor, cu_seqlens: Tensor | None = None, first: int = 0) -> Tensor:
        """``row [B, before + N + after, C]``, N tokens with their context on both sides -> ``[B,N,C]``.

        ``cu_seqlens``: bounds of packed sequences, which do not see each other; ``first``: the position of the first of
        the N tokens within these bounds.
        """
        n, weight = row.shape[1] - self.before - self.after, self.weight.to(row.dtype)
        taps = [row[:, tap : tap + n] for tap in range(len(weight))]
        if cu_seqlens is not None:
            places = torch.arange(first - self.before, first + n + self.after, device=row.device)
            sequence = torch.searchsorted(cu_seqlens.to(row.device), places, right=True)
            own = sequence[self.before : self.before + n]
            taps = [x.masked_fill((sequence[i : i + n] != own)[:, None], 0) for i, x in enumerate(taps)]
        out = taps[0] * weight[0]
        for x, factor in zip(taps[1:], weight[1:], strict=True):
            out = torch.addcmul(out, x, factor)
        return out


@dataclass(frozen=True, eq=False)
class ConvolvedState:
    """A mechanism's state, and the tokens before the next one as the convolution will look back at them.

    ``rows [B,T,C]``: queries, keys and values before the convolution, zeros for masked tokens and for those before the
    sequence. T is the convolution's ``width - 1``, and as many more as :meth:`cropped` can take back.
    """

    rows: Tensor
    state: Any

    @classmethod
    def after(cls, rows: Tensor, reach: int, state: Any) -> "ConvolvedState":
        """``rows`` up to the last ``reach`` tokens, which the next tokens need, and the mechanism's new state."""
        keep = reach + (state.recorded if isinstance(state, RecordedState) else 0)
        # a copy, so that the rows before these free their memory
        return cls(rows[:, rows.shape[1] - keep :].clone(), state)

    @property
    def seen(self) -> int:
        """How many tokens it has taken in."""
        return self.state.seen

    @property
    def recorded(self) -> int:
        """How many tokens can be taken back."""
        return self.state.recorded if isinstance(self.state, RecordedState) else 0

    def recording(self) -> "ConvolvedState":
        """The same, from which tokens to come can be taken back."""
        return replace(self, state=RecordedState(self.state, self.state))

    def cropped(self, count: int) -> "ConvolvedState":
        """The state before the last ``count`` tokens."""
        if count > self.recorded:
            raise ValueError(
                f"{count} tokens to take back and {self.recorded} recorded; call activate_past_recording() on the cache"
                " before the tokens that may have to be taken back"
            )
        reach = self.rows.shape[1] - self.recorded
        return ConvolvedState.after(self.rows[:, : self.rows.shape[1] - count], reach, self.state.cropped(count))

    def detach(self) -> "ConvolvedState":
        """The same numbers without their history."""
        return ConvolvedState(self.rows.detach(), self.state.detach())

    def to(self, *args: Any, **kwargs: Any) -> "ConvolvedState":
        """Like ``Tensor.to``, for device and dtype."""
        return ConvolvedState(self.rows.to(*args, **kwargs), self.state.to(*args, **kwargs))

    def reorder(self, index: Tensor) -> "ConvolvedState":
        """Batch rows picked by ``index`` (int64 ``[B']``), as beam search needs."""
        return ConvolvedState(self.rows.index_select(0, index.to(self.rows.device)), self.state.reorder(index))

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors by name; the mechanism's begin with ``state.``."""
        return {"rows": self.rows} | {f"state.{key}": value for key, value in self.state.state_dict().items()}

    @classmethod
    def from_state_dict(cls, tensors: dict[str, Tensor]) -> "ConvolvedState":
        """The state that :meth:`state_dict` saved."""
        if "rows" not in tensors:
            raise ValueError("not a saved state of an attention with short_convolution: rows missing")
        inner = {key.removeprefix("state."): value for key, value in tensors.items() if key.startswith("state.")}
        kind = LinearState if "format" in inner else KeyValueState
        return cls(tensors["rows"], kind.from_state_dict(inner))
