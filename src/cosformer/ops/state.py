"""The constant-size state of a linear attention: what generation carries from token to token."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FORMAT = 1


@dataclass(frozen=True, eq=False)
class LinearState:
    """Sums over every key seen so far, at absolute angles; its size does not depend on how many there were.

    ``kv [B,Hk,F,E]`` = sum of Phi(k) v^T, ``z [B,Hk,F]`` = sum of Phi(k), both float32 or float64; F = 2D with angles
    (cos half, then sin half), D without. ``position``: tokens seen, an int64 scalar tensor on the CPU, so that compiled
    steps need no new graph per token. ``max_len``: the length the angles were made for; 0 without angles.
    """

    kv: Tensor
    z: Tensor
    position: Tensor
    max_len: int

    @classmethod
    def after_step(cls, kv: Tensor, z: Tensor, seen: int, max_len: int, made: object) -> "LinearState":
        """A state as a decoding step leaves it, with what the next step wants to know: a number, and how it was made.

        Setting the fields at once and leaving ``position`` until somebody asks for it saves a tenth of such a step.
        """
        state = object.__new__(cls)
        fields = state.__dict__
        fields["kv"], fields["z"], fields["max_len"], fields["_seen"], fields["_made"] = kv, z, max_len, seen, made
        return state

    def __getattr__(self, name: str) -> Any:
        seen = self.__dict__.get("_seen")
        if name != "position" or seen is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        position = self.__dict__.setdefault(
            "position", torch.tensor(seen, device="cpu")
        )  # one, for threads that ask together
        self.__dict__.pop("_seen", None)  # from now on the tensor counts, whatever happens to it
        return position

    def __getstate__(self) -> dict[str, Any]:
        return {"kv": self.kv, "z": self.z, "position": self.position, "max_len": self.max_len}

    @property
    def seen(self) -> int:
        """How many tokens this state has taken in (masked ones count: positions are as they stand in the tensor)."""
        seen = self.__dict__.get("_seen")
        return int(self.position) if seen is None else seen

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
        return replace(self, kv=kv, z=z)

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
        }

    @classmethod
    def from_state_dict(cls, tensors: dict[str, Tensor]) -> "LinearState":
        """The state that :meth:`state_dict` saved."""
        missing = {"format", "kv", "z", "seen", "max_len"} - tensors.keys()
        if missing:
            raise ValueError(f"not a saved state: {', '.join(sorted(missing))} missing")
        if int(tensors["format"]) != FORMAT:
            raise ValueError(f"state saved in format {int(tensors['format'])}; this version reads format {FORMAT}")
        return cls(tensors["kv"], tensors["z"], tensors["seen"].cpu(), int(tensors["max_len"]))
