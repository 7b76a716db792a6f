"""Linear attention with leaky ReLU features."""

import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.base import Traits
from cosformer.attention.feature_map import FeatureMap


class LeakyRelu(FeatureMap):
    """Weights ``phi(q_i).phi(k_j)`` with phi(x) = x above zero, ``slope`` x below (ablation of Qin et al. 2022).

    The paper does not name its slope. Weights can be negative: row sums keep their sign and stay at least 1e-6 away
    from zero.
    """

    traits = Traits(paper="Qin et al. 2022", time="N D^2", memory="N D", causal=True, cross=True, streaming=True)
    normaliser = "signed"

    def __init__(self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, slope: float = 0.01) -> None:
        super().__init__(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal)
        self.slope = slope

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, slope={self.slope}"

    def phi(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.slope)
