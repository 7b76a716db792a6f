"""Attention that is linear in the length of the sequence: cosFormer, exact and fast."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cosformer._version import __version__

if TYPE_CHECKING:
    from cosformer.attention import ATTENTIONS, build_attention
    from cosformer.nn.cosformer_attention import CosformerAttention
    from cosformer.ops.operator import cosformer_attention
    from cosformer.ops.state import LinearState
    from cosformer.prediction.model import predict

# Public names resolve on first use (PEP 562): `import cosformer` and every `--help` stay free of torch.
_HOME = {
    "ATTENTIONS": "cosformer.attention",
    "build_attention": "cosformer.attention",
    "CosformerAttention": "cosformer.nn.cosformer_attention",
    "cosformer_attention": "cosformer.ops.operator",
    "LinearState": "cosformer.ops.state",
    "predict": "cosformer.prediction.model",
}

__all__ = [
    "ATTENTIONS",
    "CosformerAttention",
    "LinearState",
    "__version__",
    "build_attention",
    "cosformer_attention",
    "predict",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'cosformer' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
