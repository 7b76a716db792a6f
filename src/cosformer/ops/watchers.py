"""Who watches a call: gradients, compilers, tracers and transforms need torch's dispatcher, whose cost others can be spared."""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode


def needs_gradients(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def unwatched(*tensors: Tensor | None) -> bool:
    """Whether no gradient, compiler, tracer or transform watches this call: then the dispatcher's cost can be saved."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    if _get_current_dispatch_mode() is not None or torch._C._is_tracing() or needs_gradients(*tensors):
        return False
    return all(x is None or type(x) in (Tensor, torch.nn.Parameter) for x in tensors)
