"""Stochastic positional encoding: relative positions for attentions that never form the weights."""

import math

import torch
from torch import Tensor, nn

from cosformer.attention.base import Traits, at_least_one
from cosformer.attention.feature_maps import FeatureMap, elu_plus_one, widen

BLOCK = 64  # positions that share the cosine of their first one


class Spe(FeatureMap):
    """Linear attention (elu + 1) of q^, k^, random images of q and k that carry relative positions (Liutkus et al.
    2021).

    ``E[q^_m.k^_n] = sqrt(R / D) sum_c q_mc k_nc P_c(m - n)`` with, for each head and channel c, the learned function
    ``P_c(x) = delta_c sum_s gain_cs^2 cos(2 pi f_cs x + phase_cs) + 1 - delta_c`` of ``num_sines`` sines (the sine
    variant). q^ and k^ have R = ``num_realizations`` channels; more of them come closer to the expectation. The factor
    keeps the channels of q^ and k^ about as large as those of q and k, where elu + 1 bends.

    The random numbers are shared by queries, keys and the batch: in evaluation and in :meth:`extend` those in the
    buffers, drawn from ``seed`` (default 0); in training every call draws new ones from torch's generator
    (``torch.manual_seed``).
    """

    traits = Traits(
        paper="Liutkus et al. 2021",
        time="N D R sines",
        memory="N (D sines + R)",
        causal=True,
        cross=True,
        streaming=True,
    )
    normaliser = "add"
    noise: Tensor
    gate_noise: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        num_sines: int = 5,
        num_realizations: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        at_least_one(num_sines=num_sines, num_realizations=num_realizations)
        self.num_sines, self.num_realizations = num_sines, num_realizations
        per_sine = (num_sines, num_heads, 1, head_dim)
        self.frequency_logit = nn.Parameter(torch.empty(per_sine))
        self.phase = nn.Parameter(torch.empty(per_sine))
        self.gain = nn.Parameter(torch.empty(per_sine))
        self.gate_logit = nn.Parameter(torch.empty(num_heads, 1, head_dim))
        self.reset_parameters()
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(num_sines, 2, num_heads, head_dim, num_realizations, generator=generator)
        self.register_buffer("noise", noise)
        self.register_buffer("gate_noise", torch.randn(num_heads, head_dim, num_realizations, generator=generator))

    def reset_parameters(self) -> None:
        # low frequencies to begin with, so that far tokens are told apart slowly
        nn.init.normal_(self.frequency_logit, mean=-4)
        nn.init.normal_(self.phase)
        nn.init.constant_(self.gain, self.num_sines**-0.5)
        nn.init.normal_(self.gate_logit)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_sines={self.num_sines}, num_realizations={self.num_realizations}"

    def features(self, q: Tensor, k: Tensor, *, first: int, fresh: bool) -> tuple[Tensor, Tensor]:
        q_image, k_image = self.images(q, k, first=first, fresh=fresh)
        return elu_plus_one(q_image), elu_plus_one(k_image)

    def images(self, q: Tensor, k: Tensor, *, first: int, fresh: bool) -> tuple[Tensor, Tensor]:
        """q^ [B,H,N,R] and k^ [B,H,S,R] of q [B,H,N,D] and k [B,H,S,D] at positions first, first + 1, ...

        ``x^_p = sum_c x_c(p) [sqrt(delta_c) Omega_c(p) diag(gain_c) Z_c + sqrt(1 - delta_c) e_c] / (D R)^(1/4)``, where
        Omega_c(p) holds the cosines and sines of channel c at position p, and Z_c, e_c are the noise. One sine after
        the other: all at once would take their number times the memory.
        """
        noise, gate_noise = self.noise, self.gate_noise
        if fresh:
            noise, gate_noise = torch.randn_like(noise), torch.randn_like(gate_noise)
        scale = (self.head_dim * self.num_realizations) ** -0.25
        q, k = widen(q) * scale, widen(k) * scale
        n, s, dtype = q.shape[2], k.shape[2], q.dtype
        delta = self.gate_logit.to(dtype).sigmoid()
        still = (1 - delta).sqrt().mT * gate_noise.to(dtype)
        q_image, k_image = q @ still, k @ still
        for sine in range(self.num_sines):
            cos, sin = self._waves(sine, first, max(n, s), dtype)
            amplitude = (self.gain[sine].to(dtype) * delta.sqrt()).mT  # [H,D,1]
            z_cos, z_sin = noise[sine].to(dtype) * amplitude
            k_image.add_((k * cos[:, :s]) @ z_cos).add_((k * sin[:, :s]) @ z_sin)
            # cos(a + t) and sin(a + t) of the queries: their phase t turns the noise, so all share one table of a
            turn_cos, turn_sin = self.phase[sine].to(dtype).mT.cos(), self.phase[sine].to(dtype).mT.sin()
            z_cos, z_sin = turn_cos * z_cos + turn_sin * z_sin, turn_cos * z_sin - turn_sin * z_cos
            q_image.add_((q * cos[:, :n]) @ z_cos).add_((q * sin[:, :n]) @ z_sin)
        return q_image, k_image

    def _waves(self, sine: int, first: int, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin of ``2 pi f p`` for positions p from ``first`` on, each [H,count,D]."""
        frequency = self.frequency_logit[sine].double().sigmoid() / 2  # [H,1,D]
        start = torch.arange(first, first + count, BLOCK, dtype=torch.float64, device=frequency.device)[:, None]
        offset = torch.arange(min(BLOCK, count), dtype=torch.float64, device=frequency.device)[:, None]
        # float64, before the angle is turned into its cosine: a float32 angle of many turns has lost its place within
        # the turn. Sums of a block's angle and one within the block save nearly all of the cosines.
        block, within = 2 * math.pi * start * frequency, 2 * math.pi * offset * frequency
        cos_block, sin_block = (x.to(dtype)[:, :, None] for x in (block.cos(), block.sin()))
        cos_within, sin_within = (x.to(dtype)[:, None] for x in (within.cos(), within.sin()))
        cos = cos_block * cos_within - sin_block * sin_within
        sin = sin_block * cos_within + cos_block * sin_within
        return cos.flatten(1, 2)[:, :count], sin.flatten(1, 2)[:, :count]
