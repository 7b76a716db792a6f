"""Linear attention with rotary positions in the numerator."""

import torch
from torch import Tensor

from cosformer.attention.base import Attention, Traits
from cosformer.attention.feature_maps import FeatureMap, elu_plus_one
from cosformer.ops.operator import linear_attention
from cosformer.ops.state import LinearState

BASE = 10_000.0  # wavelengths run from 2 pi to 2 pi BASE positions
EPS = 1e-6


class RotaryLinear(FeatureMap):
    """``o_m = sum_n (R_m phi(q_m)).(R_n phi(k_n)) v_n / (sum_n phi(q_m).phi(k_n) + 1e-6)``, phi(x) = elu(x) + 1.

    Su et al. 2021. R_p turns the channels (2i, 2i+1) by the angle ``p 10000^(-2i/D)``. Only the numerator is turned, so
    weights may be negative and do not sum to one.
    """

    traits = Traits(paper="Su et al. 2021", time="N D^2", memory="N D", causal=True, cross=True, streaming=True)

    def __init__(self, *, num_heads: int, head_dim: int, max_len: int, causal: bool) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        if head_dim % 2:
            raise ValueError(f"head_dim={head_dim}; rotary positions turn pairs of channels, so it must be even")

    sharded = Attention.sharded  # numerator and denominator are sums of different keys

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: LinearState | None,
        key_mask: Tensor | None,
        *,
        first: int,
        fresh: bool,
        return_state: bool = False,
    ) -> tuple[Tensor, LinearState]:
        """The state holds sums of turned keys with values, and of the keys as they are."""
        fq, fk = elu_plus_one(q), elu_plus_one(k)
        sums = LinearState(state.z[..., None], state.z, state.position, 0) if state is not None else None
        settings = {"causal": self.causal, "key_mask": key_mask, "return_state": True, "normaliser": "none"}
        values = v.to(fq.dtype)
        num, after = linear_attention(rotate(fq, first), rotate(fk, first), values, state=state, **settings)
        den, sums = linear_attention(fq, fk, torch.ones_like(values[..., :1]), state=sums, **settings)
        out = num / (den + EPS)
        return out.to(v.dtype), LinearState(after.kv, sums.z, after.position, 0)


def rotate(x: Tensor, first: int) -> Tensor:
    """x [..., N, D], at positions first ... first + N - 1, with each pair of channels turned by its angle."""
    n, d = x.shape[-2:]
    # float64: a float32 angle of many turns has lost the digits of its place within the turn
    frequency = BASE ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    angle = (torch.arange(n, dtype=torch.float64, device=x.device) + first)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
