"""Steps of a model to be timed, and whether one fits into memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cosformer.lab.bench.measure import limited_memory

Step = Callable[[], None]
OUT_OF_MEMORY = "out of memory"


def training_step(model: torch.nn.Module, batch: dict[str, Tensor]) -> Step:
    """A whole update on the same batch: forward, loss, backward, Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    return step


def inference_step(model: torch.nn.Module, batch: dict[str, Tensor]) -> Step:
    """A forward pass without gradients."""

    def step() -> None:
        model.eval()
        with torch.no_grad():
            model(**batch)

    return step


def attempt(build: Callable[[], Step], memory: int) -> tuple[Step | None, str]:
    """The step that ``build`` makes, run once within ``memory`` bytes; or None and why it did not run."""
    try:
        with limited_memory(memory):
            step = build()
            step()
    except (ValueError, RuntimeError, MemoryError) as error:
        return None, reason(error, memory)
    return step, ""


def reason(error: Exception, memory: int) -> str:
    """Why a step did not run, in one line."""
    lines: list[Any] = str(error).splitlines() or [type(error).__name__]
    if isinstance(error, MemoryError) or "allocate" in lines[0]:
        return f"{OUT_OF_MEMORY}: more than {memory / 1e9:.3g} GB"
    return f"not run: {lines[0]}"
