"""Weights in fewer bytes: a token takes about as long as the weights take to read."""

from typing import Any

import torch
from torch import Tensor, nn

WEIGHTS = ("bf16", "int8")
ROWS = 16  # up to which the products with int8 weights are faster than making the weights bfloat16 first


class Int8Linear(nn.Module):
    """A linear map whose weights are int8 times one scale for each output channel; input and output are bfloat16."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny).bfloat16()
        rounded = (weight / scale.float()[:, None]).round().clamp(-127, 127)
        self.register_buffer("weight", rounded.to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().bfloat16())

    def extra_repr(self) -> str:
        return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]"""
        rows = x.flatten(0, -2)
        if rows.shape[0] <= ROWS and x.device.type == "cpu":
            out = torch._weight_int8pack_mm(rows, self.weight, self.scale)
        else:
            out = rows @ self.weight.to(x.dtype).mT * self.scale
        out = out if self.bias is None else out + self.bias
        return out.unflatten(0, x.shape[:-1])


def shrink_weights(model: Any, kind: str) -> Any:
    """``model`` itself with its weights in ``bf16``; with ``int8``, those of its linear maps take half of that.

    For inference. An embedding that shares its table with the scores of the words keeps it, in bfloat16.
    """
    if kind not in WEIGHTS:
        raise ValueError(f"weights={kind!r}; known: {', '.join(WEIGHTS)}")
    chosen = [(name, part) for name, part in model.named_modules() if kind == "int8" and _is_linear_map(name, part)]
    if kind == "int8" and not chosen:
        raise ValueError(f"{type(model).__name__} has no torch.nn.Linear whose weights could be int8; use bf16")
    made = {name: Int8Linear(part) for name, part in chosen}  # rounded once, not to bfloat16 before
    model.bfloat16()
    for name, part in made.items():
        model.set_submodule(name, part)
    return model


def _is_linear_map(name: str, module: nn.Module) -> bool:
    """Not those of an adaptive embedding, which the scores use transposed."""
    return isinstance(module, nn.Linear) and "embeddings." not in name
