"""Transfer: train each layer's learned maps to reproduce the output of softmax attention, all layers in one pass of the
model.

The teacher is the model itself, so teacher and student get the same inputs in each layer, and no gradient flows through
the model.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.hf.gated_window import GatedWindow
from cosformer.linearize.parallel import average, average_gradients


class TransferLayer(nn.Module):
    """Replaces a mechanism during transfer: returns softmax attention and trains ``student`` to match it."""

    def __init__(self, teacher: nn.Module, student: nn.Module) -> None:
        super().__init__()
        self.teacher, self.student = teacher, student.requires_grad_(True)
        # the weights of the gate's two masses start where they belong and learn slowly
        slow = {"gate_far", "gate_near"}
        groups = [
            {"params": [p for name, p in student.named_parameters() if (name in slow) == is_slow], "scale": scale}
            for is_slow, scale in ((False, 1.0), (True, 0.3))
        ]
        groups = [group for group in groups if group["params"]]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99)) if groups else None
        self.rate, self.steps, self.calibrates = 0.0, 0, False
        self.loss = math.nan

    @property
    def rotary(self) -> Any:
        return getattr(self.student, "rotary", None)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        with torch.no_grad():
            target = self.teacher(q, k, v, key_mask)
        answer = self._answer(q, k, v, key_mask, positions)
        if not self.steps or self.optimizer is None:
            self.loss = float(relative_error(answer(), target, key_mask))
            return target
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * group["scale"]
        for step in range(self.steps):
            with torch.enable_grad():
                loss = relative_error(answer(), target, key_mask)
                loss.backward()
            average_gradients(self.student)
            nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if step == 0:  # of rows that the maps have not seen
                self.loss = float(loss)
        return target

    def _answer(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, positions: Tensor | None
    ) -> Callable[[], Tensor]:
        """The student's output as often as it is asked for; what it does not learn is computed once."""
        student: Any = self.student
        if not isinstance(student, GatedWindow):
            given = {} if positions is None else {"positions": positions}
            return lambda: student(q, k, v, key_mask, **given)
        with torch.no_grad():
            near = student.near(q, k, v, None, key_mask, positions)
        if self.calibrates:
            student.calibrate(q, k, key_mask, near)
            average(student.gate_bias.data)
        return lambda: student.add_far(near)[0]


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
    model: Any,
    layers: dict[str, TransferLayer],
    ids: Tensor,
    mask: Tensor,
    *,
    rate: float = 0.0,
    steps: int = 0,
    calibrates: bool = False,
) -> list[float]:
    """``steps`` on ``ids [B,N]`` for every layer; the losses before them. ``calibrates``: gates first."""
    for layer in layers.values():
        layer.rate, layer.steps, layer.calibrates = rate, steps, calibrates
    with torch.no_grad():
        model.base_model(input_ids=ids, attention_mask=mask, **no_cache(model))
    return [layer.loss for layer in layers.values()]


def no_cache(model: Any) -> dict[str, Any]:
    """For models that would keep a cache."""
    return {"use_cache": False} if getattr(model.config, "use_cache", None) is not None else {}
