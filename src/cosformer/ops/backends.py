"""The backends by name, and what each can do here."""

from types import ModuleType

import torch
from torch import Tensor

from cosformer.ops import native, plain, triton

# name -> one line for `cosformer check` and for errors
BACKENDS = {
    "dense": "the definition, an N x S matrix; any device",
    "plain": "linear, plain PyTorch; any device",
    "native": "linear, compiled kernels; float32 and bfloat16 on the CPU",
    "triton": "linear, Triton kernels; float32, float16 and bfloat16 on CUDA and ROCm GPUs",
}

# linear backends: modules with `forward` and `backward`
KERNELS: dict[str, ModuleType] = {"plain": plain, "native": native, "triton": triton}
# those that do not run everywhere, with `why_not`, and have a `step` for one token
COMPILED: dict[str, ModuleType] = {"native": native, "triton": triton}
# longest N and S for which `auto` prefers the dense form to a linear backend: measured with 8 heads of 64 channels
# (triton: not measured, there was no GPU)
DENSE_UP_TO = {"native": 64, "plain": 256, "triton": 256}


def why_not(name: str, *tensors: Tensor) -> str:
    """Why a backend cannot take these q, k, v here; an empty string: it can."""
    return COMPILED[name].why_not(*tensors) if name in COMPILED else ""


def available_backends(dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[str]:
    """The backends that run here for a dtype."""
    example = torch.empty(0, dtype=dtype, device=device)
    return [name for name in BACKENDS if not why_not(name, example)]


def check_backend(name: str, *tensors: Tensor) -> None:
    """An unknown name is the caller's mistake; a known one that cannot run here is the machine's."""
    if name == "auto":
        return
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}; known: auto, {', '.join(BACKENDS)}")
    if reason := why_not(name, *tensors):
        raise RuntimeError(f"backend {name!r} cannot run here: {reason}; use backend='auto'")
