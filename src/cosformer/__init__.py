"""Attention that is linear in the length of the sequence: cosFormer, exact and fast."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cosformer._version import __version__

if TYPE_CHECKING:
    from cosformer import runs
    from cosformer.attention import ATTENTIONS, build_attention, register_attention
    from cosformer.data import register_dataset
    from cosformer.nn.cosformer_attention import CosformerAttention
    from cosformer.ops.operator import cosformer_attention
    from cosformer.ops.state import LinearState
    from cosformer.prediction.model import predict
    from cosformer.recipes import register_recipe
    from cosformer.tasks import register_task

# Public names resolve on first use (PEP 562): `import cosformer` and every `--help` stay free of torch.
_HOME = {
    "ATTENTIONS": "cosformer.attention",
    "build_attention": "cosformer.attention",
    "register_attention": "cosformer.attention",
    "register_dataset": "cosformer.data",
    "register_recipe": "cosformer.recipes",
    "register_task": "cosformer.tasks",
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
    "register_attention",
    "register_dataset",
    "register_recipe",
    "register_task",
    "runs",
]


def __getattr__(name: str) -> Any:
    if name == "runs":  # a module
        return import_module("cosformer.runs")
    if name not in _HOME:
        raise AttributeError(f"module 'cosformer' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
