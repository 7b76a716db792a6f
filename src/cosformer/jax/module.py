"""Multi-head cosFormer attention for flax: stands where ``flax.linen.MultiHeadDotProductAttention`` stands."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import jax
from cosformer.jax.operator import cosformer_attention
from cosformer.jax.state import LinearState

_NAMES = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}  # ours, and torch's


class CosformerAttention(nn.Module):
    """cosFormer attention between projections: ``[B,N,C] -> [B,N,C]``.

    The parameters (``query``, ``key``, ``value``, ``out``) have the names and shapes of
    ``MultiHeadDotProductAttention``'s, so its checkpoints load. ``max_len`` is the paper's M; None takes the longer
    length of each call and goes with neither masks nor decoding. ``decay``: the operator's rates, ``[num_heads,
    channels of a head]``; they are fixed, so no parameters. There is no attention dropout: a linear form has no matrix
    to drop from.
    """

    num_heads: int
    max_len: int | None = None
    causal: bool = False
    qkv_features: int | None = None
    out_features: int | None = None
    use_bias: bool = True
    decode: bool = False
    eps: float = 1e-6
    decay: Any = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Any = nn.initializers.lecun_normal()
    bias_init: Any = nn.initializers.zeros_init()

    @nn.compact
    def __call__(
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
    ) -> jax.Array:
        """``mask``: bool ``[B,S]`` or ``[B,1,1,S]``, True = may be attended. Masks of single pairs have no linear form:
        for the causal one set ``causal``, for packed sequences pass ``segment_ids [B,N]``.

        With ``decode`` (and ``causal``) the tokens given are the next ones; what came before lies in the collection
        ``cache``, which ``init`` makes and ``apply(..., mutable=["cache"])`` returns.
        """
        inputs_k = inputs_q if inputs_k is None else inputs_k
        inputs_v = inputs_k if inputs_v is None else inputs_v
        features = self.qkv_features or inputs_q.shape[-1]
        if features % self.num_heads:
            raise ValueError(f"{features} features do not split over num_heads={self.num_heads}; it must be a multiple")
        options: dict[str, Any] = {"use_bias": self.use_bias, "dtype": self.dtype, "param_dtype": self.param_dtype}
        options |= {"kernel_init": self.kernel_init, "bias_init": self.bias_init}
        heads = (self.num_heads, features // self.num_heads)
        q, k, v = (
            jnp.swapaxes(nn.DenseGeneral(heads, name=name, **options)(x), 1, 2)
            for name, x in (("query", inputs_q), ("key", inputs_k), ("value", inputs_v))
        )
        key_mask = None if mask is None else _key_mask(mask, k.shape[0], k.shape[2])
        if self.decode:
            out = self._extend(q, k, v, key_mask, segment_ids)
        else:
            settings = {"causal": self.causal, "max_len": self.max_len, "eps": self.eps, "decay": self.decay}
            out = cosformer_attention(q, k, v, key_mask=key_mask, segment_ids=segment_ids, **settings)
        out_features = self.out_features or inputs_q.shape[-1]
        return nn.DenseGeneral(out_features, axis=(-2, -1), name="out", **options)(jnp.swapaxes(out, 1, 2))

    def _extend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, key_mask: jax.Array | None, segment_ids: jax.Array | None
    ) -> jax.Array:
        """The next tokens behind the state in the cache; while it is being made, the output alone."""
        if not self.causal or self.max_len is None or segment_ids is not None:
            raise ValueError("decode=True needs causal=True and max_len, and goes without segment_ids")
        b, h, _, d = k.shape
        dtype = jnp.float64 if k.dtype == jnp.float64 else jnp.float32
        there = self.has_variable("cache", "state")
        state = self.variable("cache", "state", LinearState.empty, b, h, d, d, self.max_len, dtype, self.decay)
        out, after = cosformer_attention(
            q, k, v, causal=True, max_len=self.max_len, key_mask=key_mask, state=state.value, return_state=True,
            eps=self.eps, decay=self.decay,
        )  # fmt: skip
        if there:
            state.value = after
        return out


def to_numpy(params: Any) -> dict[str, np.ndarray]:
    """The module's parameters as plain arrays under the names and in the shapes of torch's ``CosformerAttention``."""
    arrays = {}
    for ours, theirs in _NAMES.items():
        kernel = np.array(params[ours]["kernel"])
        rows = -1 if ours == "out" else kernel.shape[0]
        arrays[f"{theirs}.weight"] = kernel.reshape(rows, kernel.shape[-1] if ours == "out" else -1).T
        if "bias" in params[ours]:
            arrays[f"{theirs}.bias"] = np.array(params[ours]["bias"]).reshape(-1)
    return arrays


def from_numpy(arrays: dict[str, Any], num_heads: int) -> dict[str, dict[str, jax.Array]]:
    """The module's parameters from the arrays of torch's ``CosformerAttention.state_dict()`` or :func:`to_numpy`."""
    missing = {f"{theirs}.weight" for theirs in _NAMES.values()} - arrays.keys()
    if missing:
        raise ValueError(f"not the weights of CosformerAttention: {', '.join(sorted(missing))} missing")
    params: dict[str, dict[str, jax.Array]] = {}
    for ours, theirs in _NAMES.items():
        kernel = np.asarray(arrays[f"{theirs}.weight"]).T
        split = (num_heads, -1, kernel.shape[1]) if ours == "out" else (kernel.shape[0], num_heads, -1)
        params[ours] = {"kernel": jnp.asarray(kernel.reshape(split))}
        if f"{theirs}.bias" in arrays:
            bias = np.asarray(arrays[f"{theirs}.bias"])
            params[ours]["bias"] = jnp.asarray(bias if ours == "out" else bias.reshape(num_heads, -1))
    return params


def _key_mask(mask: jax.Array, batch: int, keys: int) -> jax.Array:
    if mask.ndim == 4 and mask.shape[1:3] == (1, 1):
        mask = mask[:, 0, 0]
    if mask.shape != (batch, keys):
        raise ValueError(
            f"mask has shape {mask.shape}; expected [batch, keys] or [batch, 1, 1, keys] = [{batch}, 1, 1, {keys}]: a "
            "linear form has no matrix to mask pair by pair; set causal, or pass segment_ids"
        )
    return mask.astype(bool)
