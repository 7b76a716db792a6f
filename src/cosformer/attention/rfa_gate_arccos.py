"""Gated random feature attention with the arc-cosine kernel."""

from cosformer.attention.base import Traits
from cosformer.attention.rfa_arccos import arccos_features
from cosformer.attention.rfa_gate import GatedRandomFeatures


class RfaGateArccos(GatedRandomFeatures):
    """The map of :class:`RfaArccos` with the gate of :class:`GatedRandomFeatures` (Peng et al. 2021); causal only."""

    traits = Traits(
        paper="Peng et al. 2021",
        time="N F D",
        memory="N F",
        causal=True,
        cross=False,
        streaming=True,
        bidirectional=False,
    )
    activation = staticmethod(arccos_features)

    def __init__(
        self, *, num_heads: int, head_dim: int, max_len: int, causal: bool, num_features: int = 128, seed: int = 0
    ) -> None:
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_len": max_len}
        super().__init__(**sizes, causal=causal, num_features=num_features, seed=seed)
