"""Random feature attention with the Gaussian kernel."""

import torch
from torch import Tensor

from cosformer.attention.base import Traits
from cosformer.attention.rfa import RandomFeatures


def fourier_features(projected: Tensor) -> Tensor:
    """``[..., F] -> [..., 2F]``: sines and cosines; for w ~ N(0, I) products estimate ``exp(-|x - y|^2 / 2)``."""
    return torch.cat((projected.sin(), projected.cos()), dim=-1).mul_(projected.shape[-1] ** -0.5)


class RfaGaussian(RandomFeatures):
    """``phi(x) = F^(-1/2) [sin(W x), cos(W x)]`` of x at length one: estimates ``exp(q.k)`` but for a constant factor.

    Peng et al. 2021; see :class:`RandomFeatures` for W. The estimates may be negative: row sums keep their sign and
    stay at least 1e-6 away from zero. (The authors' code clamps them at 1, which shrinks rows with few keys.)
    """

    traits = Traits(paper="Peng et al. 2021", time="N F D", memory="N F", causal=True, cross=True, streaming=True)
    normaliser = "signed"
    activation = staticmethod(fourier_features)

    def __init__(
        self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, num_features: int = 64, seed: int = 0
    ) -> None:
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_len": max_len}
        super().__init__(**sizes, causal=causal, num_features=num_features, seed=seed)
