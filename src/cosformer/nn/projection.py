"""A linear layer applied to few rows, as generation does: at the speed of memory instead of one thread's."""

import torch
from torch import Tensor, nn
from torch.nn.modules import module

FEW_ROWS = 16
LARGE = 1 << 18  # weights; one thread has read fewer of them before another wakes up


def project(layer: nn.Module, x: Tensor) -> Tensor:
    """``layer(x)``, ``[..., C] -> [..., C']``.

    Torch's float32 product of few rows runs on one thread of an x86 processor (MKL), which reads the weights at less
    than half of the memory's speed. A large ``nn.Linear`` is therefore computed as a batch of parts of its weights, one
    for each thread. This is for inference alone; gradients, hooks, compilers, and layers of any other class, such as
    quantized ones and adapters, go the usual way.
    """
    if torch.compiler.is_compiling() or type(layer) is not nn.Linear or x.numel() > FEW_ROWS * x.shape[-1]:
        return layer(x)
    weight, bias = layer.weight, layer.bias
    parts = torch.get_num_threads()
    if (
        torch.is_grad_enabled()
        or parts == 1
        or weight.numel() < LARGE
        or weight.shape[0] % parts
        or not (type(weight) is nn.Parameter and weight.is_contiguous() and weight.device.type == "cpu")
        or not weight.dtype == x.dtype == torch.float32
        or layer._forward_hooks
        or layer._forward_pre_hooks
        or module._global_forward_hooks
        or module._global_forward_pre_hooks
        or not torch.backends.mkl.is_available()
    ):
        return layer(x)
    rows = x.reshape(1, -1, x.shape[-1]).expand(parts, -1, -1)
    columns = weight.view(parts, -1, weight.shape[1]).mT
    out = torch.bmm(rows, columns) if bias is None else torch.baddbmm(bias.view(parts, 1, -1), rows, columns)
    return out.transpose(0, 1).reshape(*x.shape[:-1], -1)
