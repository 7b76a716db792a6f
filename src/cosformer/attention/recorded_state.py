"""A state that can take tokens back: it keeps the keys and values since a point that it can return to."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cosformer.attention.base import moved

# k [B,Hk,n,D], v [B,Hk,n,E], key_mask [B,n], positions [B,n] for mechanisms that take them
Piece = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


@dataclass(frozen=True, eq=False)
class RecordedState:
    """Any mechanism's state with a record of the tokens since ``base``, as assisted decoding needs it.

    Sums cannot be taken apart without rounding, so tokens are taken back by starting from ``base`` once more. ``state``
    is None where that is still to be done: the next tokens bring the mechanism that can do it.
    """

    base: Any  # the mechanism's state before the recorded tokens; None at the start of a sequence
    state: Any = None
    pieces: tuple[Piece, ...] = ()

    @property
    def seen(self) -> int:
        """How many tokens it has taken in, those taken back not counted."""
        return (0 if self.base is None else self.base.seen) + self.recorded

    @property
    def recorded(self) -> int:
        """How many tokens can be taken back."""
        return sum(piece[0].shape[2] for piece in self.pieces)

    def extended(
        self,
        extend: Callable[..., Any],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, "RecordedState"]:
        """The next tokens, by the mechanism's own ``extend``."""
        base, pieces, current = self.base, self.pieces, self.state
        if current is None:
            groups = q.shape[1] // k.shape[1]
            for old_k, old_v, old_mask, old_positions in pieces:
                # a state depends on keys and values; the queries are there for their shape
                old_q = old_k.repeat_interleave(groups, 1)
                _, base = extend(old_q, old_k, old_v, base, old_mask, **_given(old_positions))
            pieces, current = (), base
        out, state = extend(q, k, v, current, key_mask, **_given(positions))
        return out, RecordedState(base, state, (*pieces, (k, v, key_mask, positions)))

    def cropped(self, count: int) -> "RecordedState":
        """The state before the last ``count`` tokens; what is left is final and leaves the record when it is used."""
        if count > self.recorded:
            raise ValueError(
                f"{count} tokens to take back and {self.recorded} recorded; call activate_past_recording() on the cache"
                " before the tokens that may have to be taken back"
            )
        if count == 0:
            return self if self.state is None else RecordedState(self.state, self.state)
        pieces = list(self.pieces)
        while count:
            k, v, *rest = pieces.pop()
            keep = k.shape[2] - count
            if keep > 0:
                mask, positions = (None if x is None else x[:, :keep] for x in rest)
                pieces.append((k[:, :, :keep], v[:, :, :keep], mask, positions))
            count = max(-keep, 0)
        return RecordedState(self.base, None, tuple(pieces))

    def detach(self) -> "RecordedState":
        """The same numbers without their history."""
        return self._each(lambda state: state.detach(), lambda tensor: tensor.detach())

    def to(self, *args: Any, **kwargs: Any) -> "RecordedState":
        """Like ``Tensor.to``, for device and dtype."""
        return self._each(lambda state: state.to(*args, **kwargs), lambda tensor: moved(tensor, *args, **kwargs))

    def reorder(self, index: Tensor) -> "RecordedState":
        """Batch rows picked by ``index`` (int64 ``[B']``), as beam search needs."""
        return self._each(
            lambda state: state.reorder(index), lambda tensor: tensor.index_select(0, index.to(tensor.device))
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors by name, those of the record included."""
        tensors = {}
        for name, state in (("base", self.base), ("state", self.state)):
            if state is not None:
                tensors |= {f"{name}.{key}": value for key, value in state.state_dict().items()}
        if self.pieces:
            tensors["k"] = torch.cat([piece[0] for piece in self.pieces], 2)
            tensors["v"] = torch.cat([piece[1] for piece in self.pieces], 2)
        return tensors

    def _each(self, change: Callable[[Any], Any], tensor: Callable[[Tensor], Tensor]) -> "RecordedState":
        pieces: Any = tuple(tuple(None if x is None else tensor(x) for x in piece) for piece in self.pieces)
        base, state = (None if s is None else change(s) for s in (self.base, self.state))
        return replace(self, base=base, state=state, pieces=pieces)


def extend_state(
    extend: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Any,
    key_mask: Tensor | None,
    positions: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """``extend`` of a mechanism, for a state with a record or without; ``positions`` are handed on if given."""
    if isinstance(state, RecordedState):
        return state.extended(extend, q, k, v, key_mask, positions)
    return extend(q, k, v, state, key_mask, **_given(positions))


def _given(positions: Tensor | None) -> dict[str, Tensor]:
    return {} if positions is None else {"positions": positions}
