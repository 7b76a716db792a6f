"""Mathematics on tensors: linear attention in every form, and the state that carries it from call to call."""

from cosformer.ops.backends import BACKENDS, available_backends
from cosformer.ops.operator import cosformer_attention, linear_attention
from cosformer.ops.state import LinearState

__all__ = ["BACKENDS", "LinearState", "available_backends", "cosformer_attention", "linear_attention"]
