"""Linear attention with ReLU features: cosFormer without its cosine."""

from torch import Tensor

from cosformer.attention.base import Traits
from cosformer.attention.feature_map import FeatureMap


class Relu(FeatureMap):
    """Weights ``relu(q_i).relu(k_j)``, normalised by their sum (phi = ReLU in the ablation of Qin et al. 2022).

    A query without a positive channel in common with any key attends to nothing and gives zeros.
    """

    traits = Traits(paper="Qin et al. 2022", time="N D^2", memory="N D", causal=True, cross=True, streaming=True)
    relu = True
    maps = False

    def phi(self, x: Tensor) -> Tensor:
        return x  # the kernel applies the ReLU
