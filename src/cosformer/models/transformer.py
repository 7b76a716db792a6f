"""The one transformer: encoder or left to right, with any attention of the zoo in each layer."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.output_capturing import capture_outputs

from cosformer.attention import attention_class, build_attention
from cosformer.models import packing, sharding
from cosformer.models.config import CosformerConfig
from cosformer.models.embeddings import Embeddings, Patches, Readings, build_rotation, positions_from_mask, with_cls
from cosformer.models.pretrained import CosformerPreTrainedModel, Layer
from cosformer.models.state_cache import StateCache
from cosformer.nn.block import NORM_TYPES
from cosformer.nn.feed_forward import FEED_FORWARDS
from cosformer.nn.multihead import CrossAttention, MultiHead

# what transformers hands to any model besides its own arguments
_FRAMEWORK_ARGUMENTS = {"output_hidden_states", "output_attentions", "return_dict", "num_items_in_batch"}


def build_layer(config: CosformerConfig, index: int, cross: bool = False) -> Layer:
    """Block ``index`` of the model, with the mechanism that the config names for it."""
    assert config.head_dim is not None
    attention, options = config.layer_attentions[index], config.layer_options[index]
    if "seed" in inspect.signature(attention_class(attention)).parameters:
        # layers that drew the same random features would make the same mistakes
        options = {"seed": index} | options
    sizes: dict[str, Any] = {"num_heads": config.num_attention_heads, "head_dim": config.head_dim}
    sizes["max_len"] = config.max_position_embeddings
    mechanism = build_attention(attention, **sizes, causal=config.is_decoder, **options)
    size = config.hidden_size
    heads: dict[str, Any] = {
        "num_key_heads": config.num_key_value_heads,
        "bias": config.attention_bias,
        "output_bias": config.output_bias,
        "qk_norm_eps": config.layer_norm_eps if config.qk_norm else None,
        "output_gate": config.output_gate,
    }
    looks_at = None
    if cross:
        looks_at = CrossAttention(
            build_attention(config.cross_attention or attention, **sizes, causal=False), size, **heads
        )
    feed_forward = FEED_FORWARDS[config.feed_forward_type](
        size,
        config.intermediate_size,
        act=config.hidden_act,
        dropout=config.activation_dropout,
        bias=config.feed_forward_bias,
    )
    return Layer(
        MultiHead(mechanism, size, **heads, short_convolution=config.short_convolution),
        feed_forward,
        size,
        cross=looks_at,
        norm=config.norm,
        norm_type=config.norm_type,
        norm_eps=config.layer_norm_eps,
        dropout=config.hidden_dropout_prob,
    )


class CosformerModel(CosformerPreTrainedModel):
    """Embeddings, blocks and the final norm; ``last_hidden_state [B,N,C]`` (one position more with ``cls_token``).

    ``cross``: its layers also attend to ``encoder_hidden_states``, as the decoder of an encoder-decoder does.
    """

    def __init__(self, config: CosformerConfig, cross: bool = False) -> None:
        super().__init__(config)
        if config.encoder is not None:
            raise ValueError("config.encoder goes with a head for classes, numbers or pairs of whole sequences")
        if config.is_encoder_decoder:
            raise ValueError(
                "is_encoder_decoder=True: this is one half of it; build CosformerForConditionalGeneration, or take its"
                " get_encoder()"
            )
        self.embeddings = Embeddings(config)
        if config.image_size is not None:  # the tokens of an image are its patches
            self.embeddings.tokens = Patches(config)  # pyright: ignore[reportAttributeAccessIssue]
        if config.num_input_channels is not None:
            self.embeddings.tokens = Readings(config)  # pyright: ignore[reportAttributeAccessIssue]
        self.layers = nn.ModuleList(build_layer(config, index, cross) for index in range(config.num_hidden_layers))
        norm = NORM_TYPES[config.norm_type]
        self.final_norm = norm(config.hidden_size, eps=config.layer_norm_eps) if config.final_norm else None
        self.rotation = build_rotation(config)
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

    @property
    def bounded(self) -> bool:
        """Whether learned positions or an attention limit the input to ``max_position_embeddings``."""
        layers: Any = self.layers
        return self.config.position_embedding_type == "learned" or any(x.attention.attention.bounded for x in layers)

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
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        input_values: Tensor | None = None,
        sequence_group: Any = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Compute the hidden states ``[B,N,C]`` of ``input_ids [B,N]``, of ``inputs_embeds [B,N,C]``, of an image's
        ``pixel_values`` (``image_size`` in the config), or of real numbers ``input_values [B,N,channels]``
        (``num_input_channels``).

        ``attention_mask [B, seen + N]``: 1 for tokens that may be attended.
        ``past_key_values``: the states after the ``seen`` tokens before; they are updated in place.
        ``cu_seq_lens_q``, ``seq_idx``, or ``position_ids`` that restart: sequences packed into one row.
        ``sequence_group``: a process group whose ranks each hold a shard of the sequence. ``input_ids`` and
        ``attention_mask`` are those of the shard, ``cu_seq_lens_q`` that of the whole sequence.
        """
        self._check_arguments(kwargs)
        inputs_embeds = self._embed_values(pixel_values, input_values, inputs_embeds)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None
        place = None
        if sequence_group is not None:
            unsupported = {
                "past_key_values": past_key_values,
                "use_cache": use_cache,
                "cls_token": self.config.cls_token,
            }
            unsupported |= {"encoder_hidden_states": encoder_hidden_states, "position_ids": position_ids}
            sharding.check_fit(unsupported | {"pixel_values": pixel_values, "seq_idx": kwargs.get("seq_idx")})
            place, use_cache = sharding.find_place(sequence_group, given, attention_mask), False
        source = self._check_source(encoder_hidden_states, encoder_attention_mask)
        seen = self._tokens_seen(past_key_values, position_ids, source[0])
        key_mask, bounds, position_ids = self._lay_out(given, attention_mask, position_ids, seen, place, kwargs)
        past_key_values = self._open_cache(use_cache, past_key_values, packed=bounds is not None)
        x = self.embeddings(input_ids, inputs_embeds, position_ids, token_type_ids)
        options: dict[str, Any] = {"cu_seqlens": bounds}
        if place is not None:
            options["group"] = sequence_group
        if self.rotation is not None:
            options["rotation"] = self.rotation(x, position_ids)
        x = self._through_layers(x, key_mask, past_key_values, seen, source, options)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past_key_values)

    def _tokens_seen(self, past: StateCache | None, position_ids: Tensor | None, source: Tensor | None) -> int | None:
        """How many tokens ``past`` has taken in; None in a compiled step, where only the states' own tensors say it."""
        if past is None:
            return 0
        if not isinstance(past, StateCache):
            raise ValueError(f"past_key_values is a {type(past).__name__}; this model takes a StateCache")
        if (kept := len(past.layers)) != (layers := len(self.layers)):
            raise ValueError(
                f"past_key_values has states of {kept} layers and this model has {layers} layers; make it with "
                f"StateCache({layers})"
            )
        if position_ids is not None and source is None and torch.compiler.is_compiling():
            return None
        return past.get_seq_length()

    def _embed_values(self, pixels: Tensor | None, readings: Tensor | None, given: Tensor | None) -> Tensor | None:
        """The vectors of an image's patches, of real-valued inputs, or ``given``."""
        values = {"pixel_values": (pixels, "image_size"), "input_values": (readings, "num_input_channels")}
        for name, (value, field) in values.items():
            if value is None:
                continue
            if getattr(self.config, field) is None or given is not None:
                raise ValueError(f"{name} need {field} in the config, and go without inputs_embeds")
            given = self.embeddings.tokens(value)
        return given

    def _lay_out(
        self,
        given: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        seen: int | None,
        place: sharding.Place | None,
        kwargs: dict[str, Any],
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """The mask of the new tokens (``[B,N]``, None: no masking), bounds of packed sequences, and positions."""
        length = given.shape[1]
        key_mask, masked = None, False
        if attention_mask is not None:
            key_mask = self._check_mask(attention_mask, given, seen)
            if position_ids is not None:  # then nobody counts the tokens before
                key_mask = key_mask[:, -length:]
            key_mask = key_mask.to(given.device) != 0
            masked = torch.compiler.is_compiling() or given.is_meta or not bool(key_mask[:, -length:].all())
        if seen is None:
            assert position_ids is not None
            self._find_bounds(kwargs, None, given.shape[0], length, masked, True)
            return key_mask if masked else None, None, position_ids
        total = seen + length if place is None else place.total
        bounds = self._find_bounds(kwargs, position_ids, given.shape[0], total, masked, seen > 0)
        if self.config.cls_token:
            length, total = length + 1, total + 1
            key_mask = with_cls(key_mask)
        self.check_length(total if bounds is None else int(bounds.diff().max()))
        if position_ids is None:
            first, before = (seen, None) if place is None else (place.first, place.counted)
            if bounds is None:
                counted = None if self.config.absolute_positions else key_mask
                position_ids = positions_from_mask(counted, first, length, given.device, before)
            else:
                position_ids = packing.positions_of(bounds)[:, first : first + length]
        # without a mask the mechanisms' paths are faster
        key_mask = key_mask[:, -length:] if masked and key_mask is not None else None
        return key_mask, bounds, position_ids

    def _open_cache(self, use_cache: bool | None, past: StateCache | None, *, packed: bool) -> StateCache | None:
        """The cache to continue, a new one if the call asks for one, or None."""
        if packed:
            if use_cache or past is not None:
                raise ValueError(
                    "packed sequences leave no state to continue from; call with use_cache=False, or pass one sequence "
                    "at a time"
                )
            return None
        if not self._use_cache(use_cache, past):
            return None
        return StateCache(len(self.layers)) if past is None else past

    def _through_layers(
        self,
        x: Tensor,
        key_mask: Tensor | None,
        past: StateCache | None,
        seen: int | None,
        source: tuple[Tensor | None, Tensor | None],
        options: dict[str, Any],
    ) -> Any:
        """``x [B,N,C]`` after every layer; the states in ``past`` become those after these tokens."""
        if past is None:
            for layer in self.layers:
                x = layer(x, key_mask, None, False, *source, **options)
            return x
        for i, (layer, kept) in enumerate(zip(self.layers, past.layers, strict=True)):
            if source[0] is not None:
                options |= {"memory": self._memory(i, past, source[0], source[1]), "first": seen}
            x, kept.state = layer(x, key_mask, kept.state, True, **options)  # pyright: ignore
        return x

    def _memory(self, index: int, past: StateCache, source: Tensor, mask: Tensor | None) -> Any:
        """The summary of the source in layer ``index``, computed once and kept in the cache."""
        kept: Any = past.layers[index]
        if kept.memory is None:
            kept.memory = self.layers[index].cross.summarize(source, mask)  # pyright: ignore
        return kept.memory

    def _check_source(self, hidden: Tensor | None, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The encoder's output and its mask as bool; both None where the layers have no cross-attention."""
        if self.layers[0].cross is None:
            if hidden is not None:
                raise ValueError("encoder_hidden_states given to a model without cross-attention")
            return None, None
        if hidden is None:
            raise ValueError("a decoder with cross-attention needs encoder_hidden_states")
        keep = None if mask is None else mask.to(hidden.device) != 0
        if keep is not None and not (torch.compiler.is_compiling() or keep.is_meta) and not bool(keep[:, 0].all()):
            raise ValueError(
                "the source is padded on the left, which shifts its positions against the decoder's; pad it on the "
                "right"
            )
        return hidden, keep

    def _find_bounds(
        self, kwargs: dict[str, Any], position_ids: Tensor | None, rows: int, length: int, masked: bool, seen: bool
    ) -> Tensor | None:
        asked = any(kwargs.get(name) is not None for name in packing.ARGUMENTS)
        if masked or seen:
            if asked:
                raise ValueError("packed sequences go with neither a padding mask nor past_key_values")
            return None
        bounds = packing.find_bounds(kwargs, position_ids, rows, length)
        if bounds is not None and self.config.cls_token:
            raise ValueError("cls_token=True puts one vector before the row; packed sequences would need one each")
        return bounds

    def _check_arguments(self, kwargs: dict[str, Any]) -> None:
        unknown = kwargs.keys() - _FRAMEWORK_ARGUMENTS - set(packing.ARGUMENTS)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(sorted(unknown))}")
        if kwargs.get("output_attentions", self.config.output_attentions):
            raise ValueError(
                "output_attentions: this model computes no attention matrix; use cosformer.models.attention_weights"
            )

    def check_length(self, length: int) -> None:
        """Raise ValueError on a sequence longer than the model takes."""
        if length > self.config.max_position_embeddings and self.bounded:
            raise ValueError(
                f"sequence of {length} tokens exceeds max_len={self.config.max_position_embeddings}"
                " (max_position_embeddings); use a model built with a larger one"
            )

    def _use_cache(self, use_cache: bool | None, past: StateCache | None) -> bool:
        if past is not None:
            if use_cache is False:
                raise ValueError("use_cache=False with past_key_values: pass neither, or both")
            if self.gradient_checkpointing and self.training:
                raise ValueError("past_key_values do not go with gradient checkpointing; switch one of them off")
        if use_cache is None:
            default = self.config.use_cache and not self.training and self.config.is_decoder and self.streaming
            return past is not None or default
        if use_cache and not (self.config.is_decoder and self.streaming):
            raise ValueError(
                f"use_cache=True: attention={self.config.attention!r} with is_decoder={self.config.is_decoder} carries "
                "no state; call with use_cache=False and the whole sequence"
            )
        return use_cache and not (self.gradient_checkpointing and self.training)

    @staticmethod
    def _check_mask(mask: Tensor, given: Tensor, seen: int | None) -> Tensor:
        if seen is None:
            return mask
        expected = (given.shape[0], seen + given.shape[1])
        if mask.shape != expected:
            raise ValueError(
                f"attention_mask has shape {tuple(mask.shape)}; expected [batch, tokens seen + new ones] = "
                f"{list(expected)}, 1 = may be attended"
            )
        return mask
