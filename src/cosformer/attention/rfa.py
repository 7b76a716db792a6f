"""Random feature attention (Peng et al. 2021): the Gaussian and the arc-cosine kernel, each with and without a gate."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.attention.base import Attention, Traits, at_least_one
from cosformer.attention.feature_maps import FeatureMap, widen
from cosformer.ops.checks import check_state
from cosformer.ops.dense import hide
from cosformer.ops.gated import gated_attention
from cosformer.ops.state import LinearState

NORM_EPS = 1e-3  # added to the norms that q and k are divided by


class RandomFeatures(FeatureMap):
    """``phi(x) = activation(W x / |x|)`` with Gaussian ``W = sigma * W~`` (Peng et al. 2021).

    sigma ``[H,1,D]`` is learned, from ones: the bandwidth of the kernel, for each head and channel. W~ ``[H,F,D]`` is
    standard normal: in evaluation and in :meth:`extend` the one in the buffer, drawn from ``seed``; in
    training every call draws a new one from torch's generator (``torch.manual_seed``), as dropout does, so that
    activation checkpointing repeats it. (The authors draw from a pool of 500 made beforehand.)
    """

    activation: ClassVar[Callable[[Tensor], Tensor]]  # [..., F] -> features
    default_num_features: ClassVar[int]
    projection: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_len: int,
        causal: bool,
        num_features: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        num_features = self.default_num_features if num_features is None else num_features
        at_least_one(num_features=num_features)
        self.num_features = num_features
        self.sigma = nn.Parameter(torch.ones(num_heads, 1, head_dim))
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("projection", torch.randn(num_heads, num_features, head_dim, generator=generator))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.sigma)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_features={self.num_features}"

    def features(self, q: Tensor, k: Tensor, *, first: int, fresh: bool) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(self.projection) if fresh else self.projection
        q, k = widen(q), widen(k)
        projection = (self.sigma * noise).to(q.dtype).mT
        activation = type(self).activation
        return activation(_unit(q) @ projection), activation(_unit(k) @ projection)


def _unit(x: Tensor) -> Tensor:
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + NORM_EPS)


def fourier_features(projected: Tensor) -> Tensor:
    """``[..., F] -> [..., 2F]``: sines and cosines; for w ~ N(0, I) products estimate ``exp(-|x - y|^2 / 2)``."""
    return torch.cat((projected.sin(), projected.cos()), dim=-1).mul_(projected.shape[-1] ** -0.5)


def arccos_features(projected: Tensor) -> Tensor:
    """``[..., F] -> [..., F]``: for w ~ N(0, I) products estimate ``|x| |y| (sin a + (pi - a) cos a) / (2 pi)``,
    a the angle between x and y."""
    return projected.relu() * projected.shape[-1] ** -0.5


class RfaGaussian(RandomFeatures):
    """``phi(x) = F^(-1/2) [sin(W x), cos(W x)]`` of x at length one: estimates ``exp(q.k)`` but for a constant factor.

    Peng et al. 2021; see :class:`RandomFeatures` for W. The estimates may be negative: row sums below 1 count
    as 1, as in the authors' code, which shrinks rows with few keys and keeps those bounded whose estimates cancel out.
    """

    traits = Traits(paper="Peng et al. 2021", time="N F D", memory="N F", causal=True, cross=True, streaming=True)
    eps = 1.0
    activation = staticmethod(fourier_features)
    default_num_features = 64  # each gives a sine and a cosine


class RfaArccos(RandomFeatures):
    """``phi(x) = F^(-1/2) relu(W x)`` of x at length one: the arc-cosine kernel of order one, never negative.

    Peng et al. 2021; see :class:`RandomFeatures` for W.
    """

    traits = RfaGaussian.traits
    activation = staticmethod(arccos_features)
    default_num_features = 128


class GatedRandomFeatures(RandomFeatures):
    """``S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T``, z_t likewise, ``o_t = phi(q_t) S_t / phi(q_t).z_t``.

    ``g_t = sigmoid(w.k_t + b)``, one number for each head; w and b are learned. The paper's gate reads the layer's
    input; a mechanism of this library sees its linear image k. At a masked key g is 1: the sums pass unchanged.
    Causal only, computed chunk by chunk in linear time.
    """

    eps = 1e-12  # small gates make small sums; their ratio is as good as that of large ones

    def __init__(self, *, seed: int = 0, **options: Any) -> None:  # a model looks for `seed` to give each layer its own
        super().__init__(seed=seed, **options)
        self.gate_weight = nn.Parameter(torch.empty(self.num_heads, self.head_dim, 1))
        self.gate_bias = nn.Parameter(torch.empty(self.num_heads, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        bound = self.head_dim**-0.5
        nn.init.uniform_(self.gate_weight, -bound, bound)
        nn.init.zeros_(self.gate_bias)

    sharded = Attention.sharded  # the gates of one shard weaken the sums of those before: no plain sum

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
        """The gated sums; they come with a state, wanted or not."""
        fq, fk = self.features(q, k, first=first, fresh=fresh)
        if state is not None:
            check_state(state, fk, v, fk.shape[3], 0)
        logit = (k.to(fk.dtype) @ self.gate_weight.to(fk.dtype)).squeeze(-1) + self.gate_bias.to(fk.dtype)
        log_keep, write = F.logsigmoid(logit), logit.neg().sigmoid()  # log g and 1 - g, each without cancellation
        if key_mask is not None:
            log_keep = log_keep.masked_fill(~key_mask[:, None], 0)
            write = write.masked_fill(~key_mask[:, None], 0)
            fk = hide(fk, key_mask)
        out, state = gated_attention(
            fq, fk * write[..., None], v.to(fq.dtype), log_keep, state, normaliser=self.normaliser, eps=self.eps
        )
        return out.to(v.dtype), state


class RfaGateGaussian(GatedRandomFeatures):
    """The map of :class:`RfaGaussian` with the gate of :class:`GatedRandomFeatures` (Peng et al. 2021); causal only."""

    traits = replace(RfaGaussian.traits, cross=False, bidirectional=False)
    normaliser = "signed"
    activation = staticmethod(fourier_features)
    default_num_features = RfaGaussian.default_num_features


class RfaGateArccos(GatedRandomFeatures):
    """The map of :class:`RfaArccos` with the gate of :class:`GatedRandomFeatures` (Peng et al. 2021); causal only."""

    traits = RfaGateGaussian.traits
    activation = staticmethod(arccos_features)
    default_num_features = RfaArccos.default_num_features
