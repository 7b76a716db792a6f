"""Random feature attention: what its Gaussian and arc-cosine forms, with and without gate, share."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from cosformer.attention.feature_map import FeatureMap, widen

NORM_EPS = 1e-3  # added to the norms that q and k are divided by


class RandomFeatures(FeatureMap):
    """``phi(x) = activation(W x / |x|)`` with Gaussian ``W = sigma * W~`` (Peng et al. 2021).

    sigma ``[H,1,D]`` is learned, from ones: the bandwidth of the kernel, for each head and channel. W~ ``[H,F,D]`` is
    standard normal: in evaluation and in :meth:`extend` the one in the buffer, drawn from ``seed`` (default 0); in
    training every call draws a new one from torch's generator (``torch.manual_seed``), as dropout does, so that
    activation checkpointing repeats it. (The authors draw from a pool of 500 made beforehand.)
    """

    activation: ClassVar[Callable[[Tensor], Tensor]]  # [..., F] -> features
    projection: Tensor

    def __init__(
        self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, num_features: int, seed: int
    ) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        if num_features < 1:
            raise ValueError(f"num_features={num_features}; it must be at least 1")
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
