"""``cosformer bench decode``: one token of a linearized model at growing contexts, against the model it was made of."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cosformer import terminal
from cosformer.extras import require
from cosformer.lab.bench.measure import compared, interleaved, measured
from cosformer.lab.records import Measurement


def measurements(
    *,
    source: str = "",
    models: str = "",
    lengths: Sequence[int] = (1024, 8192, 65536),
    repeats: int = 9,
    threads: int = 2,
) -> Iterator[Measurement]:
    """``source`` and ``models`` (with commas) are folders. Caches are filled with random numbers: a step's time does not
    depend on them."""
    require("hf", "transformers")
    from cosformer.linearize.compare import load

    if not source or not models:
        raise ValueError("give --source, the original, and --models, those made of it")
    torch.set_num_threads(threads)
    places = [source, *models.split(",")]
    names = [Path(place).name for place in places]
    if len({*names}) < len(names):
        raise ValueError(f"two of the folders have the same name: {', '.join(names)}")
    actions: dict[str, Any] = {}
    sizes: dict[tuple[str, int], float] = {}
    with torch.no_grad():
        for name, place in zip(names, places, strict=True):
            model = load(place)
            for n in lengths:
                terminal.status(f"filling {name}'s cache with {n:,} tokens ...")
                make = _states(model, n, max(lengths)) if hasattr(model.config, "learned") else _keys(model, n)
                sizes[name, n] = _megabytes(make())
                actions[f"{name}/{n}"] = _step(model, make)
        terminal.status("timing one token at every length ...")
        times = interleaved(actions, repeats=repeats)
    for name in names[1:]:
        for n in lengths:
            m = Measurement(
                kind="token", attention=name, length=n, baseline=names[0], unit="times faster", better="higher"
            )
            yield compared(m, times[f"{name}/{n}"], times[f"{names[0]}/{n}"])
            ours, theirs = sizes[name, n], sizes[names[0], n]
            m = replace(m, kind="cache", unit="times smaller", megabytes=ours, baseline_megabytes=theirs)
            yield measured(m, [theirs / ours])


def _keys(model: Any, tokens: int) -> Callable[[], Any]:
    """Of a stock model: transformers' own cache, with keys and values of ``tokens`` tokens."""
    from transformers import DynamicCache

    first = _first_token(model, DynamicCache())
    kept = [(_random(layer.keys, tokens), _random(layer.values, tokens)) for layer in first.layers]

    def make() -> Any:
        cache: Any = DynamicCache(config=model.config)
        for layer, (k, v) in zip(cache.layers, kept, strict=True):
            layer.lazy_initialization(k, v)
            layer.keys, layer.values = k, v
        return cache

    return make


def _states(model: Any, tokens: int, longest: int) -> Callable[[], Any]:
    """Of a linearized model: what each layer carries after ``tokens`` tokens."""
    from cosformer.attention.base import Attention
    from cosformer.models.state_cache import StateCache

    for module in model.modules():
        if isinstance(module, Attention):
            module.max_len = max(module.max_len, longest + 1)  # to be timed past the length it was made for
    first = _first_token(model, StateCache())
    states = [_aged(layer.state, tokens) for layer in first.layers]

    def make() -> Any:
        cache = StateCache(len(states))
        for i, state in enumerate(states):
            cache[i] = state
        return cache

    return make


def _aged(state: Any, tokens: int) -> Any:
    """``state`` as after ``tokens`` tokens; sums are of the same size, so that those of one token do."""
    from cosformer.attention.key_value_state import KeyValueState
    from cosformer.hf.windowed_map import WindowState

    if isinstance(state, KeyValueState):
        return KeyValueState(_random(state.k, tokens), _random(state.v, tokens), None, tokens)
    if isinstance(state, WindowState):
        return replace(state, far=_aged(state.far, tokens), key_mask=torch.ones_like(state.key_mask))
    return replace(state, position=torch.tensor(tokens))


def _random(x: torch.Tensor, tokens: int) -> torch.Tensor:
    return torch.randn(*x.shape[:2], tokens, x.shape[3], dtype=x.dtype)


def _first_token(model: Any, cache: Any) -> Any:
    model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache)
    return cache


def _step(model: Any, make: Callable[[], Any]) -> Callable[[], Any]:
    token = torch.ones(1, 1, dtype=torch.long)
    return lambda: model(token, past_key_values=make())


def _megabytes(cache: Any) -> float:
    if hasattr(cache, "nbytes"):
        return cache.nbytes / 1e6
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) / 1e6
