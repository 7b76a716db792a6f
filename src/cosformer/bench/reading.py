"""Reading a long text window by window: bytes per second, state size, and the size of a key-value cache."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cosformer.bench.measure import resident
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.config import CosformerConfig
from cosformer.models.state_cache import StateCache

PIECE = 4096  # tokens that go through the model at a time


class Reading(NamedTuple):
    """After ``tokens`` tokens. ``per_second``: since the reading before. ``process``: bytes by which the process has
    grown since the first of them; None: not measured on this system. ``key_value``: bytes that keys and values would
    take."""

    tokens: int
    per_second: float
    state: int
    process: int | None
    key_value: int


def lengthened(model: CosformerForCausalLM, max_len: int) -> CosformerForCausalLM:
    """The same weights for texts of up to ``max_len`` tokens. It was not trained there: its time and memory mean
    something, its guesses do not."""
    values: dict[str, Any] = model.config.to_dict() | {"max_position_embeddings": max_len}
    config = CosformerConfig(**values)
    longer = CosformerForCausalLM(config)
    longer.load_state_dict(model.state_dict())
    return longer.eval()


def read(model: CosformerForCausalLM, ids: Tensor, stops: Sequence[int]) -> Iterator[Reading]:
    """Read ``ids [N]``; a reading at each of the ``stops``, token counts that rise."""
    config: Any = model.config
    kept = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * 4
    cache = StateCache(config.num_hidden_layers)
    done, grown_from = 0, None
    with torch.no_grad():
        for stop in stops:
            started, before = time.perf_counter(), done
            while done < stop:
                piece = ids[None, done : min(done + PIECE, stop)]
                model.model(piece, past_key_values=cache, use_cache=True)
                done += piece.shape[1]
            seconds = time.perf_counter() - started
            size = _resident()
            grown_from = size if grown_from is None else grown_from
            grown = None if size is None or grown_from is None else size - grown_from
            yield Reading(done, (done - before) / seconds, cache.nbytes, grown, kept * done)


def _resident() -> int | None:
    try:
        return resident("VmRSS")
    except OSError:  # no /proc, as on a Mac
        return None
