"""The control that cannot attend: every visible key has the same weight."""

import torch
from torch import Tensor

from cosformer.attention.base import Traits
from cosformer.attention.feature_maps import FeatureMap


class Uniform(FeatureMap):
    """``o_i = mean of v_j over the keys that row i may see``; queries and keys are not looked at.

    A task on which it does as well as an attention that chooses says nothing about how the choice is made. One feature, the
    constant one, so the causal form is a running mean in linear time and its state is one sum and one count a head.
    """

    traits = Traits(paper="(a control)", time="N D", memory="N", causal=True, cross=True, streaming=True)

    def phi(self, x: Tensor) -> Tensor:
        # ones that hang on x with a gradient of zero: training on several machines wants one for every parameter
        return x[..., :1].masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 1)
