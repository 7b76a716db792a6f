"""Nesterov's accelerated gradient with the learning rate inside the momentum, as for adaptive input."""

from collections.abc import Callable
from typing import Any

import torch


class NAG(torch.optim.Optimizer):
    """``v <- mu * rho * v - lr * g``, and ``p`` moves by ``mu^2 * rho * v_before - (1 + mu) * lr * g``; rho = lr / lr
    before.

    Unlike ``torch.optim.SGD(nesterov=True)`` the velocity holds learning rates already applied, so that a changed rate
    rescales it.
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.99, weight_decay: float = 0.0) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum}; at least 0 and below 1")
        super().__init__(params, {"lr": lr, "lr_before": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, mu, decay = group["lr"], group["momentum"], group["weight_decay"]
            rho = lr / group["lr_before"] if group["lr_before"] > 0 else 1.0
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = torch.zeros_like(p)
                velocity = state["velocity"]
                if decay:
                    p.mul_(1 - lr * decay)
                p.add_(velocity, alpha=mu * mu * rho).add_(p.grad, alpha=-(1 + mu) * lr)
                velocity.mul_(mu * rho).add_(p.grad, alpha=-lr)
            group["lr_before"] = lr
        return loss
