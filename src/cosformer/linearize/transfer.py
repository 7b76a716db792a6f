"""Transfer: each layer's learned maps are taught the softmax attention's output, all layers in one pass of the model.

The teacher is the model itself, so its inputs to each layer are the student's: nothing is back-propagated through the model.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.linearize.parallel import average_gradients


class TransferLayer(nn.Module):
    """Runs in place of a layer's mechanism: gives the softmax attention's output, and teaches ``student`` to give it too."""

    def __init__(self, teacher: nn.Module, student: nn.Module) -> None:
        super().__init__()
        self.teacher, self.student = teacher, student.requires_grad_(True)
        self.optimizer = torch.optim.Adam(student.parameters(), betas=(0.9, 0.99))
        self.rate, self.steps = 0.0, 0
        self.loss = math.nan

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            target = self.teacher(q, k, v, key_mask)
        if not self.steps:
            self.loss = float(relative_error(self.student(q, k, v, key_mask), target, key_mask))
            return target
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        for step in range(self.steps):
            with torch.enable_grad():
                loss = relative_error(self.student(q, k, v, key_mask), target, key_mask)
                loss.backward()
            average_gradients(self.student)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if step == 0:  # of rows that the maps have not seen
                self.loss = float(loss)
        return target


def relative_error(out: Tensor, target: Tensor, key_mask: Tensor | None) -> Tensor:
    """Mean squared error of ``out [B,H,N,E]`` over the variance of ``target``; rows of padding do not count."""
    out, target = out.float(), target.float()
    if key_mask is not None:
        rows = key_mask[:, None, :, None].expand_as(target)
        out, target = out[rows], target[rows]
    return (out - target).square().mean() / target.var().clamp_min(1e-12)


def schedule(update: int, updates: int) -> float:
    """The learning rate's factor: a short warm-up, then half a cosine down to zero."""
    warm = max(1, updates // 20)
    if update < warm:
        return (update + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (update - warm) / max(1, updates - warm)))


def transfer_update(
    model: Any, layers: dict[str, TransferLayer], ids: Tensor, mask: Tensor, *, rate: float = 0.0, steps: int = 0
) -> list[float]:
    """One pass over ``ids [B,N]``, ``steps`` of every layer; the layers' losses before them."""
    for layer in layers.values():
        layer.rate, layer.steps = rate, steps
    with torch.no_grad():
        model.base_model(input_ids=ids, attention_mask=mask, **no_cache(model))
    return [layer.loss for layer in layers.values()]


def no_cache(model: Any) -> dict[str, Any]:
    """For models that would keep a cache."""
    return {"use_cache": False} if getattr(model.config, "use_cache", None) is not None else {}
