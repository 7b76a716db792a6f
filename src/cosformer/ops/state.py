"""The constant-size state of a linear attention: what generation carries from token to token."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FORMAT = 2  # 1: without decay


@dataclass(frozen=True, eq=False)
class LinearState:
    """Sums over every key seen so far, at absolute angles; its size does not depend on how many there were.

    ``kv [B,Hk,F,E]`` = sum of Phi(k) v^T, ``z [B,Hk,F]`` = sum of Phi(k), both float32 or float64; F = 2D with angles
    (cos half, then sin half), D without. ``position``: tokens seen, an int64 scalar tensor on the CPU, so that compiled
    steps need no new graph per token. ``max_len``: the length the angles were made for; 0 without angles. ``decay
    [Hk,D]``: the rates of the calls that made it, or None; the sums are decayed up to the last token's position.
    """

    kv: Tensor
    z: Tensor
    position: Tensor
    max_len: int
    decay: Tensor | None = None

    def __init__(self, kv: Tensor, z: Tensor, position: Tensor, max_len: int, decay: Tensor | None = None) -> None:
        # what a frozen dataclass would do takes three times as long, and every generated token makes a state per layer
        fields = self.__dict__
        fields["kv"], fields["z"], fields["position"] = kv, z, position
        fields["max_len"], fields["decay"] = max_len, decay

    @property
    def seen(self) -> int:
        """How many tokens this state has taken in (masked ones count: positions are as they stand in the tensor)."""
        return int(self.position)

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes + self.z.nbytes

    def detach(self) -> "LinearState":
        """The same numbers without their history (truncated back-propagation through time)."""
        return replace(self, kv=self.kv.detach(), z=self.z.detach())

    def to(self, *args: Any, **kwargs: Any) -> "LinearState":
        """Like ``Tensor.to``, for device and dtype; sums below float32 are refused."""
        kv, z = self.kv.to(*args, **kwargs), self.z.to(*args, **kwargs)
        if kv.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"a state is kept in float32 or float64, not {kv.dtype}: half-precision sums lose early tokens"
            )
        decay = None if self.decay is None else self.decay.to(*args, **kwargs)
        return replace(self, kv=kv, z=z, decay=decay)

    def reorder(self, index: Tensor) -> "LinearState":
        """Batch rows picked by ``index`` (int64 ``[B']``), as beam search needs."""
        index = index.to(self.kv.device)
        return replace(self, kv=self.kv.index_select(0, index), z=self.z.index_select(0, index))

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors to save, with the version of this format."""
        return {
            "format": torch.tensor(FORMAT, device="cpu"),
            "kv": self.kv,
            "z": self.z,
            "seen": self.position,
            "max_len": torch.tensor(self.max_len, device="cpu"),
            **({} if self.decay is None else {"decay": self.decay}),
        }

    @classmethod
    def from_state_dict(cls, tensors: dict[str, Tensor]) -> "LinearState":
        """The state that :meth:`state_dict` saved."""
        missing = {"format", "kv", "z", "seen", "max_len"} - tensors.keys()
        if missing:
            raise ValueError(f"not a saved state: {', '.join(sorted(missing))} missing")
        if int(tensors["format"]) not in (1, FORMAT):
            raise ValueError(f"state saved in format {int(tensors['format'])}; this version reads 1 to {FORMAT}")
        position, max_len = tensors["seen"].cpu(), int(tensors["max_len"])
        return cls(tensors["kv"], tensors["z"], position, max_len, tensors.get("decay"))
