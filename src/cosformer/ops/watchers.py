"""Who watches a call: gradients, compilers, tracers and transforms need torch's dispatcher, whose cost others can be spared."""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode


def needs_gradients(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def in_a_mode() -> bool:
    """Whether a tracer, a transform, forward-mode differentiation or a dispatch mode is on, whatever the tensors are."""
    return (
        torch._C._is_tracing()
        or _get_current_dispatch_mode() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def unwatched(*tensors: Tensor | None) -> bool:
    """Whether no gradient, compiler, tracer or transform watches this call: then the dispatcher's cost can be saved."""
    # the compiler first: it cannot trace the questions about the others
    if torch.compiler.is_compiling() or in_a_mode() or needs_gradients(*tensors):
        return False
    # meta tensors have shapes alone, which the dispatcher's operators know without a walk through the chunks
    return all(x is None or (type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta) for x in tensors)
