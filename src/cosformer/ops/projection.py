"""A linear layer's product. Where attention is linear, these products are most of a model's time.

:func:`project` is ``torch.nn.functional.linear``. Many rows of float32 times a small weight, on a CPU with AVX2, take the
kernels of :mod:`cosformer.ops.native.products` instead, which were measured to be faster there.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.ops.native import products
from cosformer.ops.native.library import find
from cosformer.ops.watchers import in_a_mode, needs_gradients

# where `cosformer bench products` found the kernels ahead
FEWEST_ROWS = 4096
FEWEST_CHANNELS = 64
LARGEST_WEIGHT = 1 << 19  # elements
LEAST_WORK = 1 << 27  # multiplications
MULTIPLE = 16  # of channels, which the kernels need
MEASURED = ("avx2",)  # instruction sets for which the kernels were compared with torch's products


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x [..., K]`` times ``weight [N,K]`` transposed, plus ``bias [N]`` -> ``[..., N]``."""
    return project_natively(x, weight, bias) if takes(x, weight, bias) else F.linear(x, weight, bias)


def project_natively(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same by our kernels, whether or not they are known to be faster; for what :func:`takes` calls plain."""
    if needs_gradients(x, weight, bias):
        return _Project.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
    return products.times(x, weight, bias, transposed=True)


def takes(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a call is one for our kernels."""
    if torch.compiler.is_compiling():  # asked first: the sizes must not become guards of its graph
        return False
    n, k = weight.shape
    many = x.numel() >= FEWEST_ROWS * k and x.numel() * n >= LEAST_WORK
    if not many or min(n, k) < FEWEST_CHANNELS or n * k > LARGEST_WEIGHT:
        return False
    if n % MULTIPLE or k % MULTIPLE or x.shape[-1] != k:
        return False
    tensors = (x, weight) if bias is None else (x, weight, bias)
    plain = all(
        t.dtype == torch.float32 and t.device.type == "cpu" and type(t) in (Tensor, torch.nn.Parameter) for t in tensors
    )
    return plain and not in_a_mode() and not torch.is_autocast_enabled("cpu") and _measured()


def _measured() -> bool:
    library, _ = find()
    return library is not None and library.instructions in MEASURED


class _Project(torch.autograd.Function):
    """``project`` with its gradients from the same kernels; their own gradients come from torch's products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(x, weight)
        return products.times(x, weight, bias, transposed=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled() or in_a_mode():
            dx = grad @ weight if wanted[0] else None
            dw = grad.flatten(0, -2).mT @ x.flatten(0, -2) if wanted[1] else None
        else:
            dx = products.times(grad, weight, transposed=False) if wanted[0] else None
            dw = products.outer(grad, x) if wanted[1] else None
        return dx, dw, grad.flatten(0, -2).sum(0) if wanted[2] else None
