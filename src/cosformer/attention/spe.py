"""Stochastic positional encoding: relative positions for attentions that never form the weights."""

import math

import torch
from torch import Tensor, nn

from cosformer.attention.base import Traits
from cosformer.attention.feature_map import FeatureMap, widen
from cosformer.attention.linear import elu_plus_one


class Spe(FeatureMap):
    """Linear attention (elu + 1) of q^, k^, random images of q and k that carry relative positions (Liutkus et al. 2021).

    ``E[q^_m.k^_n] = sum_c q_mc k_nc P_c(m - n) / sqrt(D)`` with, for each head and channel c, the learned function
    ``P_c(x) = delta_c sum_s gain_cs^2 cos(2 pi f_cs x + phase_cs) + 1 - delta_c`` of ``num_sines`` sines (the sine
    variant). q^ and k^ have ``num_realizations`` channels; more of them come closer to the expectation.

    The random numbers are shared by queries, keys and the batch: in evaluation and in :meth:`extend` those in the
    buffers, drawn from ``seed``; in training every call draws new ones from torch's generator (``torch.manual_seed``).
    """

    traits = Traits(
        paper="Liutkus et al. 2021", time="N D R sines", memory="N (D + R)", causal=True, cross=True, streaming=True
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
        if num_sines < 1 or num_realizations < 1:
            raise ValueError(f"num_sines={num_sines}, num_realizations={num_realizations}; both must be at least 1")
        self.num_sines, self.num_realizations = num_sines, num_realizations
        per_sine = (num_sines, num_heads, 1, head_dim)
        # low frequencies to begin with, so that far tokens are told apart slowly
        self.frequency_logit = nn.Parameter(torch.randn(per_sine) - 4)
        self.phase = nn.Parameter(torch.randn(per_sine))
        self.gain = nn.Parameter(torch.full(per_sine, num_sines**-0.5))
        self.gate_logit = nn.Parameter(torch.randn(num_heads, 1, head_dim))
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(num_sines, 2, num_heads, head_dim, num_realizations, generator=generator)
        self.register_buffer("noise", noise)
        self.register_buffer("gate_noise", torch.randn(num_heads, head_dim, num_realizations, generator=generator))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_sines={self.num_sines}, num_realizations={self.num_realizations}"

    def features(self, q: Tensor, k: Tensor, *, first: int, fresh: bool) -> tuple[Tensor, Tensor]:
        q_image, k_image = self.images(q, k, first=first, fresh=fresh)
        return elu_plus_one(q_image), elu_plus_one(k_image)

    def images(self, q: Tensor, k: Tensor, *, first: int, fresh: bool) -> tuple[Tensor, Tensor]:
        """q^ [B,H,N,R] and k^ [B,H,S,R] of q [B,H,N,D] and k [B,H,S,D] at positions first, first + 1, ..."""
        noise, gate_noise = self.noise, self.gate_noise
        if fresh:
            noise, gate_noise = torch.randn_like(noise), torch.randn_like(gate_noise)
        return self._image(q, self.phase, noise, gate_noise, first), self._image(k, None, noise, gate_noise, first)

    def _image(self, x: Tensor, phase: Tensor | None, noise: Tensor, gate_noise: Tensor, first: int) -> Tensor:
        """``sum_c x_c(p) [sqrt(delta) Omega_c(p) diag(gain) Z_c + sqrt(1 - delta) e_c] / (D R)^(1/4)``.

        One sine after the other, because all of them at once would take D times the memory of x for each sine.
        """
        x = widen(x) * (self.head_dim * self.num_realizations) ** -0.25
        delta = self.gate_logit.sigmoid().to(x.dtype)
        image = (x * (1 - delta).sqrt()) @ gate_noise.to(x.dtype)
        x = x * delta.sqrt()
        position = torch.arange(first, first + x.shape[2], dtype=torch.float64, device=x.device)[:, None]
        for sine in range(self.num_sines):
            turns = position * (self.frequency_logit[sine].double().sigmoid() / 2)
            # whole turns taken out in float64: a float32 angle of many turns has lost its place within the turn
            angle = (turns - turns.detach().floor()).to(x.dtype) * (2 * math.pi)
            if phase is not None:
                angle = angle + phase[sine].to(x.dtype)
            scaled = x * self.gain[sine].to(x.dtype)
            image = image + (scaled * angle.cos()) @ noise[sine, 0].to(x.dtype)
            image = image + (scaled * angle.sin()) @ noise[sine, 1].to(x.dtype)
        return image
