"""Models and their steps to be timed, on any device, and whether a step fits into memory."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from cosformer import machine, terminal
from cosformer.bench.measure import interleaved, limited_memory, peak_above_now
from cosformer.bench.tables import OUT_OF_MEMORY

BYTES = 256
Step = Callable[[], None]


def language_model(attention: str, max_len: int, *, width: int, layers: int, heads: int, **more: Any) -> Any:
    """A causal model of bytes without dropout; weights outside of the attention are the same for every attention."""
    from cosformer.models.causal_lm import CosformerForCausalLM
    from cosformer.models.config import CosformerConfig

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 4 * width, "max_position_embeddings": max_len}
    sizes |= {"num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": BYTES}
    plain: dict[str, Any] = {"attention": attention, "is_decoder": True, "hidden_dropout_prob": 0.0}
    return CosformerForCausalLM(CosformerConfig(**sizes | plain | more))


def random_bytes(rows: int, length: int) -> dict[str, Tensor]:
    """A batch of a language model: it shall say what it reads."""
    ids = torch.randint(0, BYTES, (rows, length))
    return {"input_ids": ids, "labels": ids}


def training_step(model: torch.nn.Module, batch: dict[str, Tensor], backward: Callable[[], Any] | None = None) -> Step:
    """A whole update on the same batch: forward, loss, backward, Adam. ``backward``: gradients another way."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        if backward is None:
            model(**batch).loss.backward()
        else:
            backward()
        optimizer.step()
        _finish(batch)

    return step


def inference_step(model: torch.nn.Module, batch: dict[str, Tensor]) -> Step:
    """A forward pass without gradients."""

    def step() -> None:
        model.eval()
        with torch.no_grad():
            model(**batch)
        _finish(batch)

    return step


def attempt(build: Callable[[], Step], memory: int, device: str = "cpu") -> tuple[Step | None, str]:
    """The step that ``build`` makes, run once within ``memory`` bytes; or None and why it did not run."""
    try:
        with _limited(memory, device):
            step = build()
            step()
    except (ValueError, RuntimeError, MemoryError) as error:
        return None, _reason(error, memory, device)
    return step, ""


def timed(
    builds: Mapping[str, Callable[[], Step]], memory: int, device: str = "cpu", **options: Any
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of the steps of each of ``builds``, interleaved; and by name why one exceeded ``memory`` bytes."""
    actions, notes = {}, {}
    for name, build in builds.items():
        terminal.status(f"building {name} ...")
        step, notes[name] = attempt(build, memory, device)
        if step is not None:
            actions[name] = step
    terminal.status(f"timing {len(actions)} models ...")
    return interleaved(actions, warm=True, **options), notes


def peak(step: Step, memory: int, device: str = "cpu") -> int | str:
    """Bytes by which memory peaks above its present level during ``step``, or why it did not run."""
    try:
        if not device.startswith("cuda"):
            with limited_memory(memory):
                return peak_above_now(step)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    except (ValueError, RuntimeError, MemoryError) as error:
        return _reason(error, memory, device)


def allowed_bytes(gigabytes: float | None) -> int:
    """Bytes that one model's step may take: as given, or most of what is free."""
    return int(1e9 * gigabytes) if gigabytes else int(0.7 * machine.memory("MemAvailable"))


def _finish(batch: dict[str, Tensor]) -> None:
    """A GPU works on after the call has returned."""
    device = next(iter(batch.values())).device
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _limited(memory: int, device: str) -> Any:
    # before the limit: OpenBLAS, which transformers loads, waits forever for memory that it cannot get
    import cosformer.models.classification  # noqa: F401

    return nullcontext() if device.startswith("cuda") else limited_memory(memory)  # a GPU's memory is its own limit


def _reason(error: Exception, memory: int, device: str) -> str:
    """Why a step did not run, in one line."""
    lines = str(error).splitlines() or [type(error).__name__]
    if isinstance(error, MemoryError) or "allocate" in lines[0]:
        room = "the GPU has" if device.startswith("cuda") else f"{memory / 1e9:.3g} GB"
        return f"{OUT_OF_MEMORY}: more than {room}"
    return f"not run: {lines[0]}"
