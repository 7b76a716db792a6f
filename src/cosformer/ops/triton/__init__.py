"""The Triton kernels for CUDA and ROCm GPUs: the contract of ``plain``, in float32, float16 and bfloat16.

Nothing here imports triton before a call needs it. With ``TRITON_INTERPRET=1`` in the environment (read when the
kernels are first used) Triton's interpreter runs the same kernels on CPU tensors, slowly: that is how they are tested
without a GPU.
"""

import importlib.util
import os
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cosformer.ops.triton.plan import WIDEST, padded, product_kind

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Triton's interpreter multiplies the bit patterns of bfloat16 numbers; the tests correct that, and add it here
_INTERPRETED_DTYPES = [torch.float32, torch.float16]


@lru_cache(maxsize=1)
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def why_not(*tensors: Tensor) -> str:
    """Why these q, k, v cannot go through the kernels here; an empty string: they can."""
    if not _installed():
        return "the triton package is not installed"
    if not tensors:
        return ""
    q, *others = tensors
    device = "cpu" if interpreted() else "cuda"  # torch calls ROCm's devices cuda, too
    if q.device.type != device:
        return f"the kernels take tensors on {device}, these are on {q.device.type}"
    if q.dtype not in _DTYPES:
        return f"the kernels take float32, float16 and bfloat16, not {str(q.dtype).removeprefix('torch.')}"
    if interpreted() and q.dtype not in _INTERPRETED_DTYPES:
        return (
            "Triton's interpreter computes wrong products of bfloat16; use float32 or float16, or unset "
            "TRITON_INTERPRET"
        )
    widest = max((x.shape[-1] for x in (q, *others)), default=0)
    if widest > WIDEST:
        return f"the kernels take up to {WIDEST} channels a head, not {widest}"
    if product_kind(q.dtype) == "ieee" and padded(widest) == WIDEST:
        return (
            f"exact float32 products take up to {WIDEST // 2} channels a head, not {widest}; tf32 products take "
            f"{WIDEST}"
        )
    return ""


def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``launch.forward``."""
    from cosformer.ops.triton import launch

    return launch.forward(*arguments)


def backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See ``launch.backward``."""
    from cosformer.ops.triton import launch

    return launch.backward(*arguments)


def step(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """See ``launch.step``."""
    from cosformer.ops.triton import launch

    return launch.step(*arguments)
