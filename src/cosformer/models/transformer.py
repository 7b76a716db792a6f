"""The one transformer: encoder or left to right, with any attention of the zoo in each layer."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.output_capturing import capture_outputs

from cosformer.attention import attention_class, build_attention
from cosformer.models.config import CosformerConfig
from cosformer.models.embeddings import Embeddings, positions_from_mask, with_cls
from cosformer.models.pretrained import CosformerPreTrainedModel, Layer
from cosformer.models.state_cache import StateCache
from cosformer.nn.feed_forward import FeedForward
from cosformer.nn.multihead import MultiHead


def build_layer(config: CosformerConfig, index: int) -> Layer:
    """Block ``index`` of the model, with the mechanism that the config names for it."""
    assert config.head_dim is not None
    attention, options = config.layer_attentions[index], config.layer_options[index]
    if "seed" in inspect.signature(attention_class(attention)).parameters:
        # layers that drew the same random features would make the same mistakes
        options = {"seed": index} | options
    mechanism = build_attention(
        attention,
        num_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        max_len=config.max_position_embeddings,
        causal=config.is_decoder,
        **options,
    )
    size = config.hidden_size
    feed_forward = FeedForward(size, config.intermediate_size, act=config.hidden_act, dropout=config.activation_dropout)
    return Layer(
        MultiHead(mechanism, size, bias=config.attention_bias),
        feed_forward,
        size,
        norm=config.norm,
        norm_eps=config.layer_norm_eps,
        dropout=config.hidden_dropout_prob,
    )


class CosformerModel(CosformerPreTrainedModel):
    """Embeddings, blocks and the final norm; ``last_hidden_state [B,N,C]`` (one position more with ``cls_token``)."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(build_layer(config, index) for index in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.final_norm else None
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.tokens = value  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def streaming(self) -> bool:
        """Whether every layer can carry a state, so that generation need not recompute."""
        return all(layer.attention.streaming for layer in self.layers)  # pyright: ignore

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: StateCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """ids ``[B,N]`` or vectors ``[B,N,C]``; ``attention_mask [B, seen + N]``, 1 = may be attended.

        ``past_key_values``: the states after the tokens seen before; they are replaced, in place, by those after these N.
        """
        if kwargs.get("output_attentions"):
            raise ValueError(
                "output_attentions: there is no attention matrix here; call the mechanism with v = identity"
            )
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None
        use_cache = self._use_cache(use_cache, past_key_values)
        if use_cache and past_key_values is None:
            past_key_values = StateCache(len(self.layers))
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        length = given.shape[1]
        if attention_mask is not None:
            attention_mask = self._check_mask(attention_mask, given, seen)
        if self.config.cls_token:
            length += 1
            attention_mask = with_cls(attention_mask)
        if seen + length > self.config.max_position_embeddings:
            raise ValueError(
                f"sequence of {seen + length} tokens exceeds max_len={self.config.max_position_embeddings}"
                " (max_position_embeddings); use a model built with a larger one"
            )
        if position_ids is None:
            counted = None if self.config.absolute_positions else attention_mask
            position_ids = positions_from_mask(counted, seen, length, given.device)
        x = self.embeddings(input_ids, inputs_embeds, position_ids, token_type_ids)
        key_mask = None if attention_mask is None else attention_mask[:, -length:]
        traced = torch.compiler.is_compiling() or given.is_meta
        if key_mask is not None and not traced and bool(key_mask.all()):
            key_mask = None  # the mechanisms' unmasked paths are faster
        for i, layer in enumerate(self.layers):
            if past_key_values is not None:
                x, past_key_values[i] = layer(x, key_mask, past_key_values[i], True)
            else:
                x = layer(x, key_mask)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past_key_values)

    def _use_cache(self, use_cache: bool | None, past: StateCache | None) -> bool:
        if past is not None:
            if not isinstance(past, StateCache):
                raise ValueError(f"past_key_values is a {type(past).__name__}; this model takes a StateCache")
            if use_cache is False:
                raise ValueError("use_cache=False with past_key_values: pass neither, or both")
            if self.gradient_checkpointing and self.training:
                raise ValueError("past_key_values do not go with gradient checkpointing; switch one of them off")
        if use_cache is None:
            default = self.config.use_cache and not self.training and self.config.is_decoder and self.streaming
            return past is not None or default
        if use_cache and not (self.config.is_decoder and self.streaming):
            raise ValueError(
                f"use_cache=True: attention={self.config.attention!r} with is_decoder={self.config.is_decoder} carries no"
                " state; call with use_cache=False and the whole sequence"
            )
        return use_cache and not (self.gradient_checkpointing and self.training)

    @staticmethod
    def _check_mask(mask: Tensor, given: Tensor, seen: int) -> Tensor:
        expected = (given.shape[0], seen + given.shape[1])
        if mask.shape != expected:
            raise ValueError(
                f"attention_mask has shape {tuple(mask.shape)}; expected [batch, tokens seen + new ones] = {list(expected)},"
                " 1 = may be attended"
            )
        return mask.to(given.device) != 0
