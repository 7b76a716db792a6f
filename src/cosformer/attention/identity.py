"""Linear attention without a feature map: the paper's worst ablation."""

from torch import Tensor

from cosformer.attention.base import Traits
from cosformer.attention.feature_map import FeatureMap


class Identity(FeatureMap):
    """Weights ``q_i.k_j / sum_j q_i.k_j`` (phi = identity in the ablation of Qin et al. 2022).

    Weights of either sign: a row sum may come near zero, where outputs grow without bound. It keeps its sign and stays
    at least 1e-6 away from zero.
    """

    traits = Traits(paper="Qin et al. 2022", time="N D^2", memory="N D", causal=True, cross=True, streaming=True)
    normaliser = "signed"
    maps = False

    def phi(self, x: Tensor) -> Tensor:
        return x
