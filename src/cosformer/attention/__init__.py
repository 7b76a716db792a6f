"""The zoo: one mechanism (or one family of a paper) per file, one table, one way to build and call them."""

from importlib import import_module
from typing import Any

from cosformer.attention.base import Attention, Traits
from cosformer.plugins import register
from cosformer.suggest import unknown

# name -> (module, class). The module is imported when its attention is built.
ATTENTIONS: dict[str, tuple[str, str]] = {
    "softmax": ("cosformer.attention.softmax", "Softmax"),
    "cosformer": ("cosformer.attention.cosformer", "Cosformer"),
    "multiscale": ("cosformer.attention.multiscale", "Multiscale"),
    "relu": ("cosformer.attention.feature_maps", "Relu"),
    "leaky_relu": ("cosformer.attention.feature_maps", "LeakyRelu"),
    "identity": ("cosformer.attention.feature_maps", "Identity"),
    "uniform": ("cosformer.attention.feature_maps", "Uniform"),
    "linear": ("cosformer.attention.feature_maps", "Linear"),
    "performer": ("cosformer.attention.performer", "Performer"),
    "rfa_gaussian": ("cosformer.attention.rfa", "RfaGaussian"),
    "rfa_arccos": ("cosformer.attention.rfa", "RfaArccos"),
    "rfa_gate_gaussian": ("cosformer.attention.rfa", "RfaGateGaussian"),
    "rfa_gate_arccos": ("cosformer.attention.rfa", "RfaGateArccos"),
    "rotary_linear": ("cosformer.attention.rotary_linear", "RotaryLinear"),
    "spe": ("cosformer.attention.spe", "Spe"),
    "local": ("cosformer.attention.local", "Local"),
    "longformer": ("cosformer.attention.longformer", "Longformer"),
    "sparse": ("cosformer.attention.sparse", "Sparse"),
    "bigbird": ("cosformer.attention.bigbird", "Bigbird"),
    "reformer": ("cosformer.attention.reformer", "Reformer"),
    "sinkhorn": ("cosformer.attention.sinkhorn", "Sinkhorn"),
    "smyrf": ("cosformer.attention.smyrf", "Smyrf"),
    "routing": ("cosformer.attention.routing", "Routing"),
    "clustered": ("cosformer.attention.clustered", "Clustered"),
    "linformer": ("cosformer.attention.linformer", "Linformer"),
    "nystrom": ("cosformer.attention.nystrom", "Nystrom"),
    "inducing": ("cosformer.attention.inducing", "Inducing"),
    "synthesizer": ("cosformer.attention.synthesizer", "Synthesizer"),
}


def attention_class(name: str) -> type[Attention]:
    """The class behind ``name``; an unknown name raises and lists the known ones."""
    if name not in ATTENTIONS:
        raise unknown("attention", name, sorted(ATTENTIONS))
    module, attribute = ATTENTIONS[name]
    return getattr(import_module(module), attribute)


def build_attention(
    name: str, *, num_heads: int, head_dim: int, max_len: int, causal: bool, **options: Any
) -> Attention:
    """Build the mechanism ``name``; ``options`` are its own (see its class)."""
    return attention_class(name)(num_heads=num_heads, head_dim=head_dim, max_len=max_len, causal=causal, **options)


def register_attention(name: str, cls: type[Attention]) -> None:
    """Make an attention of your own known as ``name``, to :func:`build_attention`, models and benchmarks alike.

    ``cls`` is a class at the top of its module, with ``traits``.
    """
    if not (isinstance(cls, type) and issubclass(cls, Attention) and hasattr(cls, "traits")):
        raise ValueError(f"attention {name!r}: {cls!r} is no subclass of cosformer.attention.Attention with traits")
    register("attention", ATTENTIONS, name, cls)


__all__ = ["ATTENTIONS", "Attention", "Traits", "attention_class", "build_attention", "register_attention"]
