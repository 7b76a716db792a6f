"""Random feature attention with the arc-cosine kernel."""

from torch import Tensor

from cosformer.attention.base import Traits
from cosformer.attention.rfa import RandomFeatures


def arccos_features(projected: Tensor) -> Tensor:
    """``[..., F] -> [..., F]``: for w ~ N(0, I) products estimate ``|x| |y| (sin a + (pi - a) cos a) / (2 pi)``,
    a the angle between x and y."""
    return projected.relu() * projected.shape[-1] ** -0.5


class RfaArccos(RandomFeatures):
    """``phi(x) = F^(-1/2) relu(W x)`` of x at length one: the arc-cosine kernel of order one, never negative.

    Peng et al. 2021; see :class:`RandomFeatures` for W.
    """

    traits = Traits(paper="Peng et al. 2021", time="N F D", memory="N F", causal=True, cross=True, streaming=True)
    activation = staticmethod(arccos_features)

    def __init__(
        self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, num_features: int = 128, seed: int = 0
    ) -> None:
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_len": max_len}
        super().__init__(**sizes, causal=causal, num_features=num_features, seed=seed)
