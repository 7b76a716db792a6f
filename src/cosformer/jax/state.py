"""The constant-size state of the JAX operator: a pytree, so that jit, scan, vmap and donation take it as it is."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

import jax

FORMATS = (1, 2)  # of the arrays that torch's LinearState.state_dict() has too; 2: with rates of decay


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LinearState:
    """Sums over every key seen so far, at absolute angles.

    ``kv [B,Hk,2D,E]`` and ``z [B,Hk,2D]``: float32, or float64 for float64 input; cosine half, then sine half.
    ``position``: tokens seen, an integer scalar array. ``max_len``: the length that the angles were made for, fixed
    while tracing. ``decay [Hk,D]``: the rates at which the sums decay, up to the last token seen; None: they do not.
    """

    kv: jax.Array
    z: jax.Array
    position: jax.Array
    max_len: int = field(metadata={"static": True})
    decay: jax.Array | None = None

    @classmethod
    def empty(
        cls,
        batch: int,
        heads: int,
        channels: int,
        values: int,
        max_len: int,
        dtype: Any = jnp.float32,
        decay: Any = None,
    ) -> "LinearState":
        """The state before the first token, for ``heads`` key heads of ``channels`` and value heads of ``values``."""
        shape = (batch, heads, 2 * channels)
        rates = None if decay is None else jnp.asarray(decay, dtype)
        kv, z = jnp.zeros((*shape, values), dtype), jnp.zeros(shape, dtype)
        return cls(kv, z, jnp.zeros((), jnp.int32), max_len, rates)

    @property
    def seen(self) -> int:
        """How many tokens this state has taken in; known outside ``jit`` only."""
        return int(self.position)

    def reorder(self, index: jax.Array) -> "LinearState":
        """Batch rows picked by ``index [B']``, as beam search needs."""
        return replace(self, kv=self.kv[index], z=self.z[index])

    def to_numpy(self) -> dict[str, np.ndarray]:
        """Plain arrays under the names of torch's ``LinearState.state_dict()``."""
        arrays = {
            "format": np.asarray(1 if self.decay is None else 2),
            "kv": np.array(self.kv),  # copies: torch takes no arrays that cannot be written to
            "z": np.array(self.z),
            "seen": np.array(self.position, np.int64),
            "max_len": np.asarray(self.max_len),
        }
        return arrays if self.decay is None else arrays | {"decay": np.array(self.decay)}

    @classmethod
    def from_numpy(cls, arrays: dict[str, Any]) -> "LinearState":
        """The state that :meth:`to_numpy` gave, or torch's ``state_dict()`` with its tensors as arrays."""
        missing = {"format", "kv", "z", "seen", "max_len"} - arrays.keys()
        if missing:
            raise ValueError(f"not a saved state: {', '.join(sorted(missing))} missing")
        if int(arrays["format"]) not in FORMATS:
            raise ValueError(f"state saved in format {int(arrays['format'])}; this version reads formats 1 and 2")
        kv, z = jnp.asarray(np.asarray(arrays["kv"])), jnp.asarray(np.asarray(arrays["z"]))
        decay = None if arrays.get("decay") is None else jnp.asarray(np.asarray(arrays["decay"]))
        return cls(kv, z, jnp.asarray(int(arrays["seen"]), jnp.int32), int(arrays["max_len"]), decay)
