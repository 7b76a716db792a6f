"""The states of all layers as one object that transformers' ``generate`` can hold, copy and reorder."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from cosformer.attention.base import State


class StateLayer(CacheLayerMixin):
    """One layer's state: whatever its attention's ``extend`` returned last, None before the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None
        self.pending = False  # keys were handed on and no state has come back yet

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """For stock models under ``attn_implementation="cosformer"``: hands this layer on with the new keys.

        The attention function finds it there, attends to state and keys, and stores the next state.
        """
        if self.pending:
            raise ValueError(
                "a StateCache needs an attention that keeps states; load the model with attn_implementation='cosformer'"
            )
        self.is_initialized = self.pending = True
        key_states.cosformer_layer = self  # pyright: ignore[reportAttributeAccessIssue]
        return key_states, value_states

    def get_seq_length(self) -> int:
        return 0 if self.state is None else self.state.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.state, self.pending = None, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.reorder(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            rows = torch.arange(self.batch_size).repeat_interleave(repeats)
            self.state = self.state.reorder(rows)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.reorder(torch.arange(self.batch_size)[indices.cpu()])

    @property
    def batch_size(self) -> int:
        return -1 if self.state is None else next(x.shape[0] for x in self._tensors().values() if x.dim() > 1)

    @property
    def nbytes(self) -> int:
        """Bytes that the state holds."""
        return sum(x.nbytes for x in self._tensors().values())

    def offload(self) -> None:
        raise ValueError("a state is not offloaded: it has one size for every length; use the default cache")

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise ValueError("a state cannot forget tokens, so assisted decoding is not possible; generate without it")

    def _tensors(self) -> dict[str, Tensor]:
        return {} if self.state is None else self.state.state_dict()


class StateCache(Cache):
    """``past_key_values`` made of states, one per layer: of one size whatever the length, if the attention's state is.

    Our own models make it themselves. Pass one to a stock decoder that runs with ``attn_implementation="cosformer"``.
    """

    def __init__(self, num_layers: int | None = None) -> None:
        if num_layers is None:
            super().__init__(layer_class_to_replicate=StateLayer)
        else:
            super().__init__(layers=[StateLayer() for _ in range(num_layers)])

    @property
    def nbytes(self) -> int:
        """Bytes that all states hold."""
        return sum(layer.nbytes for layer in self.layers if isinstance(layer, StateLayer))

    def __getitem__(self, layer: int) -> State | None:
        return self.layers[layer].state  # pyright: ignore[reportAttributeAccessIssue]

    def __setitem__(self, layer: int, state: State) -> None:
        self.layers[layer].state = state  # pyright: ignore[reportAttributeAccessIssue]
