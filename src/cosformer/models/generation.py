"""``generate`` for models whose attentions keep states of their own."""

import warnings
from typing import Any

from transformers import GenerationConfig

from cosformer.models.state_cache import StateCache


class StateGeneration:
    """Goes before transformers' ``GenerationMixin``: gives ``generate`` a :class:`StateCache` wherever it wants a cache."""

    _told_recompute = False

    def decoder_body(self) -> Any:
        """The :class:`CosformerModel` that writes."""
        return self.model  # pyright: ignore[reportAttributeAccessIssue]

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict, *args: Any, **kwargs: Any
    ) -> None:
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r}: this model keeps its own states; leave it out"
            )
        given = model_kwargs.get("past_key_values")
        if given is not None:
            given._is_user_defined = True  # generate asks for it when it returns
            return
        if not generation_config.use_cache:
            return
        body = self.decoder_body()
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
