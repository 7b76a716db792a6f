"""The key-value cache as a value: what softmax attentions carry from one piece of a sequence to the next."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cosformer.attention.base import TensorState


@dataclass(frozen=True, eq=False)
class KeyValueState(TensorState):
    """Keys ``k [B,H,S,D]`` and values ``v [B,H,S,E]`` that later queries may still attend to, in order.

    ``key_mask`` is bool ``[B,S]``, True where a key may be attended, or None when all may. ``position`` counts every
    token taken in; it exceeds S where old keys have been dropped. Like a linear state's it is an int64 scalar tensor on
    the CPU, so that compiled steps need no new graph per token.
    """

    k: Tensor
    v: Tensor
    key_mask: Tensor | None
    position: Tensor

    @property
    def seen(self) -> int:
        """How many tokens this state has taken in."""
        return int(self.position)

    @classmethod
    def extended(cls, state: "KeyValueState | None", k: Tensor, v: Tensor, key_mask: Tensor | None) -> "KeyValueState":
        """``state`` (None: nothing yet) followed by the next tokens; ``state`` itself stays as it was."""
        if state is None:
            # copies, so that the state neither changes with the caller's tensors nor keeps a larger one alive
            k, v = (x.clone(memory_format=torch.contiguous_format) for x in (k, v))
            return cls(k, v, None if key_mask is None else key_mask.clone(), _count(k.shape[2]))
        if state.k.shape[0] != k.shape[0] or state.v.shape[-1] != v.shape[-1]:
            had, got = (state.k.shape[0], state.v.shape[-1]), (k.shape[0], v.shape[-1])
            raise ValueError(
                f"the state is of (batch, value channels) {had}, the next tokens of {got}; they must be equal"
            )
        if state.key_mask is not None or key_mask is not None:
            masks = [
                x.new_ones(x.shape[0], x.shape[2], dtype=torch.bool) if mask is None else mask
                for x, mask in ((state.k, state.key_mask), (k, key_mask))
            ]
            key_mask = torch.cat(masks, dim=1)
        return cls(torch.cat((state.k, k), 2), torch.cat((state.v, v), 2), key_mask, state.position + k.shape[2])

    def last(self, length: int) -> "KeyValueState":
        """The same with at most the last ``length`` keys, copied so that the dropped ones free their memory.

        A single dropped key is not worth a copy: the next tokens bring one anyway.
        """
        drop = self.k.shape[2] - length
        if drop <= 0:
            return self
        mask = None if self.key_mask is None else self.key_mask[:, drop:]
        k, v = self.k[:, :, drop:], self.v[:, :, drop:]
        if drop > 1 or torch.compiler.is_compiling():
            k, v = (x.clone(memory_format=torch.contiguous_format) for x in (k, v))
            mask = None if mask is None else mask.clone()
        return KeyValueState(k, v, mask, self.position)

    def cropped(self, count: int) -> "KeyValueState":
        """The state before the last ``count`` tokens."""
        if count == 0:
            return self
        keep = self.k.shape[2] - count
        if keep < 0 or self.seen != self.k.shape[2]:
            raise ValueError(
                f"{count} tokens to take back from a cache that keeps {self.k.shape[2]} of {self.seen} tokens; call"
                " activate_past_recording() on the cache before the tokens that may have to be taken back"
            )
        mask = None if self.key_mask is None else self.key_mask[:, :keep]
        return KeyValueState(self.k[:, :, :keep], self.v[:, :, :keep], mask, _count(keep))

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors to save; ``key_mask`` is there only if there is one."""
        tensors = {"k": self.k, "v": self.v, "seen": self.position}
        return tensors if self.key_mask is None else {**tensors, "key_mask": self.key_mask}

    def _each(self, tensor: Callable[[Tensor], Tensor], state: Callable[[Any], Any]) -> "KeyValueState":
        """The position has no batch and stays where it is."""
        mask = None if self.key_mask is None else tensor(self.key_mask)
        return replace(self, k=tensor(self.k), v=tensor(self.v), key_mask=mask)

    @classmethod
    def from_state_dict(cls, tensors: dict[str, Tensor]) -> "KeyValueState":
        """The state that ``state_dict`` saved."""
        missing = {"k", "v", "seen"} - tensors.keys()
        if missing:
            raise ValueError(f"not a saved key-value state: {', '.join(sorted(missing))} missing")
        return cls(tensors["k"], tensors["v"], tensors.get("key_mask"), tensors["seen"].cpu())


def _count(tokens: int) -> Tensor:
    return torch.full((), tokens, dtype=torch.int64, device="cpu")
