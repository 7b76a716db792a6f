"""The backends by name, what each can do here, and which one ``auto`` takes."""

from types import ModuleType

import torch
from torch import Tensor

from cosformer.ops import chunked

# name -> one line for `cosformer check` and for errors
BACKENDS = {
    "dense": "the definition, an N x S matrix; fastest for short input",
    "chunked": "linear, plain PyTorch, any device",
}

DENSE_UP_TO = 256  # longest N and S for which `auto` takes the dense form


def kernel(name: str) -> ModuleType:
    """The module with ``forward`` and ``backward`` of a linear backend."""
    return {"chunked": chunked}[name]


def check_backend(name: str) -> None:
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known: auto, {', '.join(BACKENDS)}")


def choose(q: Tensor, k: Tensor, cu_seqlens: Tensor | None) -> str:
    """What ``auto`` takes for these tensors."""
    short = cu_seqlens is None and max(q.shape[2], k.shape[2]) <= DENSE_UP_TO
    return "dense" if short else "chunked"


def supported_dtypes() -> tuple[torch.dtype, ...]:
    return torch.float64, torch.float32, torch.bfloat16, torch.float16
