"""cosFormer attention for JAX: the operator, its state and a flax module. Needs the extra ``cosformer[jax]``."""

try:
    import flax  # noqa: F401

    import jax  # noqa: F401
except ImportError as error:
    raise ImportError(f"cosformer.jax needs {error.name}; install it with: pip install 'cosformer[jax]'") from error

from cosformer.jax.module import CosformerAttention, from_numpy, to_numpy
from cosformer.jax.operator import cosformer_attention
from cosformer.jax.state import LinearState

__all__ = ["CosformerAttention", "LinearState", "cosformer_attention", "from_numpy", "to_numpy"]
