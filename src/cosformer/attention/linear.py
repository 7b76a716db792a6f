"""The Linear Transformer: features elu + 1."""

import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Traits
from cosformer.attention.feature_map import FeatureMap, widen


class Linear(FeatureMap):
    """``o_i = sum_j (phi(q_i).phi(k_j)) v_j / (sum_j phi(q_i).phi(k_j) + 1e-6)``, phi(x) = elu(x) + 1.

    Katharopoulos et al. 2020. The small number is added to the row sum, as its authors do, and there is no 1/sqrt(D).
    """

    traits = Traits(
        paper="Katharopoulos et al. 2020", time="N D^2", memory="N D", causal=True, cross=True, streaming=True
    )
    normaliser = "add"

    def phi(self, x: Tensor) -> Tensor:
        return elu_plus_one(x)


def elu_plus_one(x: Tensor) -> Tensor:
    """x + 1 above zero, exp(x) below: positive and smooth."""
    return F.elu(widen(x)).add_(1)
