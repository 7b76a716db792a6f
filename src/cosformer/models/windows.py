"""A long sequence through a causal language model window by window on one device: memory is that of a window, whatever
the length.

Each layer's state goes from window to window. With full gradients a first pass without them notes the states at the
borders; then the windows are worked off from the last to the first, each computed again from its state, and the
gradient of a state is handed to the window before. That is activation checkpointing with windows for segments: the
gradients of the whole for one more forward pass.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cosformer.models.config import IGNORE
from cosformer.models.state_cache import StateCache
from cosformer.nn.short_convolution import ConvolvedState
from cosformer.ops.state import LinearState

Carried = LinearState | ConvolvedState
States = list[Carried] | None  # of each layer; None at the start of a sequence


def backward_in_windows(
    model: nn.Module,
    batch: dict[str, Tensor],
    *,
    window: int,
    truncated: bool = False,
    divisor: Tensor | float | None = None,
    wrapped: Any = None,
) -> Tensor:
    """The loss of ``batch`` with its gradients added to the parameters', ``window`` tokens of a row at a time.

    ``model``: a causal language model whose attentions keep sums for a state (cosFormer and the feature maps).
    ``batch``: ``input_ids [B,N]`` with ``labels`` or ``shift_labels``, and ``attention_mask``. ``truncated``: no
    gradient goes from a window to those before it, which saves the first pass. ``divisor``: what the summed loss is
    divided by; None: the labels that count. ``wrapped``: ``model`` inside DistributedDataParallel, whose gradients are
    added up over processes once, after the last window.
    """
    targets = _targets(batch)
    share = (targets != IGNORE).sum() if divisor is None else divisor
    parts = list(_parts(targets.shape[1], window))
    total = torch.zeros((), dtype=torch.float64, device=targets.device)

    def run(number: int, states: States, last: bool) -> tuple[Tensor, list[Carried]]:
        """Forward and backward of one window; ``last`` of the step."""
        cache = _cache(model, states)
        with _without_sync(wrapped, not last):
            inputs = _cut(batch, parts[number]) | {"shift_labels": targets[:, parts[number]]}
            loss = (wrapped or model)(**inputs, past_key_values=cache, num_items_in_batch=share).loss
            after = _states(model, cache)
            outputs, gradients = [loss], [torch.ones_like(loss)]
            if later is not None:
                outputs += [x for state in after for x in _tensors(state)]
                gradients += later
            torch.autograd.backward(outputs, gradients)
        return loss.detach(), after

    later: list[Tensor] | None = None  # gradients of the states after a window, from the windows behind it
    if truncated:
        states: States = None
        for number in range(len(parts)):
            loss, states = run(number, states, number == len(parts) - 1)
            states = [state.detach() for state in states]
            total += loss
        return total
    before = _borders(model, batch, parts)
    behind = None
    for number in reversed(range(len(parts))):
        states, random = before.pop()
        _set_random_state(random)
        if states is not None:
            states = [_leaf(state) for state in states]
        loss, _ = run(number, states, number == 0)
        total += loss
        later = None if states is None else [x.grad for state in states for x in _tensors(state)]  # pyright: ignore
        if behind is None:  # the numbers of the next step follow on those of the last window
            behind = _random_state()
    _set_random_state(behind)
    return total


@torch.no_grad()
def losses_in_windows(model: nn.Module, batch: dict[str, Tensor], *, window: int) -> Tensor:
    """The loss at each position, ``[B,N]``, 0 where none counts."""
    targets, cache, found = _targets(batch), _cache(model, None), []
    for part in _parts(targets.shape[1], window):
        inputs = _cut(batch, part) | {"shift_labels": targets[:, part]}
        found.append(model(**inputs, past_key_values=cache, reduction="none").loss)
    return torch.cat(found, 1)


@torch.no_grad()
def _borders(model: Any, batch: dict[str, Tensor], parts: list[slice]) -> list[tuple[States, Any]]:
    """The states before each window, and what dropout draws its numbers from there."""
    cache, found = _cache(model, None), list[tuple[States, Any]]()
    found.append((None, _random_state()))
    for part in parts[:-1]:
        model.model(**_cut(batch, part), past_key_values=cache)
        found.append((_states(model, cache), _random_state()))
    return found


def _parts(length: int, window: int) -> Iterator[slice]:
    if window < 1:
        raise ValueError(f"window={window}; it must be at least 1")
    return (slice(start, min(start + window, length)) for start in range(0, length, window))


def _cut(batch: dict[str, Tensor], part: slice) -> dict[str, Tensor]:
    """The window's ids, and the mask of all tokens up to its end."""
    unknown = batch.keys() - {"input_ids", "attention_mask", "labels", "shift_labels"}
    if unknown:
        raise ValueError(
            f"a sequence in windows takes input_ids, attention_mask and labels, not {', '.join(sorted(unknown))}"
        )
    inputs = {"input_ids": batch["input_ids"][:, part]}
    if "attention_mask" in batch:
        inputs["attention_mask"] = batch["attention_mask"][:, : part.stop]
    return inputs


def _targets(batch: dict[str, Tensor]) -> Tensor:
    shifted = batch.get("shift_labels")
    return F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORE) if shifted is None else shifted


def _cache(model: Any, states: States) -> StateCache:
    cache = StateCache(len(model.model.layers))
    for index, state in enumerate(states or ()):
        cache[index] = state
    return cache


def _states(model: Any, cache: StateCache) -> list[Carried]:
    states: list[Any] = [cache[index] for index in range(len(model.model.layers))]
    for state in states:
        if not isinstance(state.state if isinstance(state, ConvolvedState) else state, LinearState):
            raise ValueError(
                f"attention={model.config.attention!r} keeps every key instead of sums of one size, so windows would "
                "not bound its memory; use cosformer or another feature map"
            )
    return states


def _tensors(state: Carried) -> list[Tensor]:
    """What gradients go through from one window to the one before."""
    return [state.rows, *_tensors(state.state)] if isinstance(state, ConvolvedState) else [state.kv, state.z]


def _leaf(state: Carried) -> Carried:
    """The same numbers, of which gradients are collected."""
    if isinstance(state, ConvolvedState):
        return ConvolvedState(state.rows.requires_grad_(), _leaf(state.state))
    return replace(state, kv=state.kv.requires_grad_(), z=state.z.requires_grad_())


def _without_sync(wrapped: Any, wanted: bool) -> AbstractContextManager[Any]:
    return wrapped.no_sync() if wanted and hasattr(wrapped, "no_sync") else nullcontext()


def _random_state() -> Any:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_random_state(state: Any) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
