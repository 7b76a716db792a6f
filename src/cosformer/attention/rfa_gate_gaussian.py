"""Gated random feature attention with the Gaussian kernel."""

from cosformer.attention.base import Traits
from cosformer.attention.rfa_gate import GatedRandomFeatures
from cosformer.attention.rfa_gaussian import fourier_features


class RfaGateGaussian(GatedRandomFeatures):
    """The map of :class:`RfaGaussian` with the gate of :class:`GatedRandomFeatures` (Peng et al. 2021); causal only."""

    traits = Traits(
        paper="Peng et al. 2021",
        time="N F D",
        memory="N F",
        causal=True,
        cross=False,
        streaming=True,
        bidirectional=False,
    )
    normaliser = "signed"
    activation = staticmethod(fourier_features)

    def __init__(
        self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, num_features: int = 64, seed: int = 0
    ) -> None:
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_len": max_len}
        super().__init__(**sizes, causal=causal, num_features=num_features, seed=seed)
