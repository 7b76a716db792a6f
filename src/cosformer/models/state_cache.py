"""The states of all layers as a cache for transformers' ``generate``: copied, reordered and rolled back."""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.generation import GenerationMixin

from cosformer.attention.base import State
from cosformer.attention.recorded_state import RecordedState
from cosformer.nn.short_convolution import ConvolvedState


class StateLayer(CacheLayerMixin):
    """One layer's state: whatever its attention's ``extend`` returned last, None before the first token.

    ``memory``: what its cross-attention made of the encoder's output, if it has one.
    """

    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None
        self.memory: Any = None
        self.record_past = False
        self.pending = False  # keys were handed on and no state has come back yet

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """For stock models that run one of our attentions: hands this layer on with the new keys.

        The attention function finds it there, attends to state and keys, and stores the next state.
        """
        if self.pending:
            raise ValueError(
                "a StateCache needs an attention that keeps states; load the model with attn_implementation='cosformer'"
                " or 'multiscale'"
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

    get_max_cache_shape = get_max_length  # its name before transformers 5.13

    def reset(self) -> None:
        self.state = RecordedState(None) if self.record_past else None
        self.memory, self.pending = None, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.state, self.memory = (None if x is None else x.reorder(beam_idx) for x in (self.state, self.memory))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(max(self.batch_size, 0)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(torch.arange(max(self.batch_size, 0))[indices.cpu()])

    @property
    def batch_size(self) -> int:
        return next((x.shape[0] for x in self._tensors() if x.dim() > 1), -1)

    @property
    def nbytes(self) -> int:
        """Bytes that the state holds."""
        return sum(x.nbytes for x in self._tensors())

    def offload(self) -> None:
        raise ValueError("a state is not offloaded: it has one size for every length; use the default cache")

    def activate_past_recording(self) -> None:
        """From now on keep what :meth:`crop` needs: the tokens since the last ``crop``."""
        if not self.record_past:
            self.record_past = True
            convolved = isinstance(self.state, ConvolvedState)
            self.state = self.state.recording() if convolved else RecordedState(self.state, self.state)

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens, as many as the negative number says; 0 ends the record there."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop({tokens_to_remove}): give minus the number of tokens to take back; assisted decoding, which "
                "calls this, needs transformers 5.15 or later (before, it asked for a length)"
            )
        if self.state is None or not (tokens_to_remove or self.record_past):
            return
        if not hasattr(self.state, "cropped"):
            raise ValueError(
                f"a {type(self.state).__name__} cannot forget tokens it has summed; call activate_past_recording() on "
                "the cache before the tokens that may have to be taken back"
            )
        self.state = self.state.cropped(-tokens_to_remove)

    def _tensors(self) -> list[Tensor]:
        return [t for x in (self.state, self.memory) if x is not None for t in x.state_dict().values()]


class StateCache(Cache):
    """``past_key_values`` made of states, one per layer, each of the kind its layer's attention keeps: sums of one size
    whatever the length for linear attentions, keys and values for softmax.

    Our own models and converted ones make it themselves. Pass one to a stock decoder that runs with
    ``attn_implementation="cosformer"``. ``activate_past_recording()`` lets ``crop`` take tokens back.
    """

    def __init__(self, num_layers: int | None = None) -> None:
        self._recording = False
        if num_layers is None:
            super().__init__(layer_class_to_replicate=self._new_layer)  # pyright: ignore[reportArgumentType]
        else:
            super().__init__(layers=[StateLayer() for _ in range(num_layers)])

    def _new_layer(self) -> StateLayer:
        layer = StateLayer()
        if self._recording:
            layer.activate_past_recording()
        return layer

    def activate_past_recording(self) -> None:
        """Keep what :meth:`crop` needs: the tokens since the last ``crop``."""
        self._recording = True
        for layer in self.layers:  # transformers' own, which does the same, came with 5.14
            layer.activate_past_recording()  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def nbytes(self) -> int:
        """Bytes that all states hold."""
        return sum(layer.nbytes for layer in self.layers if isinstance(layer, StateLayer))

    def __getitem__(self, layer: int) -> State | None:
        return self.layers[layer].state  # pyright: ignore[reportAttributeAccessIssue]

    def __setitem__(self, layer: int, state: State) -> None:
        self.layers[layer].state = state  # pyright: ignore[reportAttributeAccessIssue]


class StateGeneration:
    """Placed before transformers' ``GenerationMixin``: makes ``generate`` use a :class:`StateCache`."""

    _told_recompute = False

    # generate looks at the names of the arguments
    @functools.wraps(GenerationMixin.prepare_inputs_for_generation)  # pyright: ignore[reportAttributeAccessIssue]
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As transformers' own, without the mask of tokens that a state has taken in, and without the tokenizer of
        ``stop_strings`` and of ``transformers serve``, which ``generate`` hands on to the model.

        A mask that grows with every token would be a new shape for a compiled step, and a compiled step cannot raise.
        """
        kwargs.pop("tokenizer", None)
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        past, given = inputs.get("past_key_values"), inputs.get("input_ids")
        if not isinstance(past, StateCache) or given is None or not (seen := past.get_seq_length()):
            return inputs
        tokens, mask = given.shape[1], inputs.get("attention_mask")
        self.get_decoder().check_length(seen + tokens)  # pyright: ignore[reportAttributeAccessIssue]
        if mask is not None and inputs.get("position_ids") is not None and bool(mask[:, -tokens:].all()):
            inputs["attention_mask"] = None
        return inputs

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict, *args: Any, **kwargs: Any
    ) -> None:
        if generation_config.cache_implementation == "dynamic_full":  # what assisted decoding asked for before 5.15
            raise ValueError("assisted decoding needs transformers 5.15 or later")
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r}: this model keeps its own states; "
                "leave it out"
            )
        given = model_kwargs.get("past_key_values")
        if given is not None:
            given._is_user_defined = True  # generate asks for it when it returns
            return
        if not generation_config.use_cache:
            return
        body = self.get_decoder()  # pyright: ignore[reportAttributeAccessIssue]
        if body.streaming:
            cache = model_kwargs["past_key_values"] = StateCache(len(body.layers))
            if generation_config.is_assistant:
                cache.activate_past_recording()
            return
        generation_config.use_cache = False
        if not self._told_recompute:
            self._told_recompute = True
            warnings.warn(
                f"attention={body.config.attention!r} carries no state from token to token: every step of generate()"
                " computes the whole sequence again",
                stacklevel=4,
            )
