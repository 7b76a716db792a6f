"""What every model of the family shares: how it starts, is saved and is loaded."""

import os
import re
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from cosformer.attention.base import Attention
from cosformer.models.adaptive import BandProjection, WordTable
from cosformer.models.card import write_card
from cosformer.models.config import CosformerConfig
from cosformer.models.embeddings import Embeddings
from cosformer.nn.block import Block
from cosformer.nn.short_convolution import ShortConvolution


class Layer(GradientCheckpointingLayer, Block):
    """A block that transformers can checkpoint."""


class CosformerPreTrainedModel(PreTrainedModel):
    """Base of the family: initial weights, saving with a model card, loading with checks."""

    config: CosformerConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class = CosformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[Any] = ["Layer", "Embeddings"]
    _skip_keys_device_placement: ClassVar[Any] = ["past_key_values"]
    _can_record_outputs: ClassVar[Any] = {"hidden_states": Layer}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        config = self.config
        if isinstance(module, Attention):
            if hasattr(module, "reset_buffers"):  # loading leaves buffers that are not saved without values
                module.reset_buffers()  # pyright: ignore[reportCallIssue]
            # the mechanism's own parameters start as its paper says; those that came from a file are left alone
            fresh = [p for p in module.parameters() if not getattr(p, "_is_hf_initialized", False)]
            if fresh and hasattr(module, "reset_parameters"):
                module.reset_parameters()  # pyright: ignore[reportCallIssue]
        elif isinstance(module, WordTable):
            if not getattr(module.weight, "_is_hf_initialized", False):
                init.normal_(module.weight, std=module.std)
                if module.padding_idx is not None:
                    init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, BandProjection) or (isinstance(module, nn.Linear) and config.initializer == "xavier"):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, ShortConvolution):
            init.copy_(module.weight, module.identity())
        elif isinstance(module, Embeddings) and module.cls is not None:
            init.zeros_(module.cls)
        else:
            super()._init_weights(module)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        if attn_implementation not in (None, "eager"):
            raise ValueError(
                f"attn_implementation={attn_implementation!r} is for stock models; this model takes its attention from"
                f" its config: attention={self.config.attention!r}"
            )
        return "eager"

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As transformers' own; an adaptive vocabulary cannot be resized."""
        if self.config.adaptive_cutoffs is not None:
            raise ValueError("the bands of an adaptive vocabulary are fixed; build the model with another vocab_size")
        return super().resize_token_embeddings(*args, **kwargs)

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *args: Any,
        config: PreTrainedConfig | str | os.PathLike | None = None,
        **kwargs: Any,
    ) -> Self:
        """As transformers' own, but weights trained with one attention are refused under another.

        A Llama, Mistral, Qwen2 or Qwen3 checkpoint loads under our names, with softmax unless ``attention`` or
        another field of the config is given.
        """
        from cosformer.models import llama  # it knows the config, which knows nothing of it

        where: Any = pretrained_model_name_or_path
        own = where is not None  # else everything is given: config and state_dict
        if own and not isinstance(config, PreTrainedConfig):
            saved, _ = CosformerConfig.get_config_dict(where if config is None else config)
            if saved.get("model_type") in llama.FAMILIES:
                kwargs = llama.translate(where if config is None else config, kwargs)
                config, own = kwargs.pop("config"), False
        if own and isinstance(config, PreTrainedConfig):
            _check_same_attention(config, where)
        info_too = kwargs.pop("output_loading_info", False)
        try:
            loaded: Any = super().from_pretrained(where, *args, config=config, output_loading_info=True, **kwargs)
        except SafetensorError as error:
            raise ValueError(
                f"the weights in {where} cannot be read ({error}); the file is damaged or cut off"
            ) from error
        model, info = loaded
        if own and not isinstance(config, PreTrainedConfig):
            _check_same_attention(model.config, where)
        foreign_names = "key_mapping" in kwargs
        _check_whole_body(info, where, new_attention=foreign_names)
        if foreign_names:
            llama.start_mechanisms(model)
            model._weight_conversions = None  # it is ours now: saved under our names, not under theirs
        _align(model)
        return (model, info) if info_too else model  # pyright: ignore[reportReturnType]

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing to do: a saved model always says where its classes are (:mod:`cosformer.models.auto_map`)."""

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As transformers' own, and a model card (README.md) unless one is there."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            write_card(Path(save_directory), type(self).__name__, self.config, self.num_parameters())


def _check_same_attention(config: Any, where: str | os.PathLike) -> None:
    saved, _ = CosformerConfig.get_config_dict(where)
    if saved.get("model_type") != CosformerConfig.model_type:
        raise ValueError(
            f"{where} holds a model of type {saved.get('model_type')!r}, not {CosformerConfig.model_type!r}"
        )
    had = CosformerConfig.from_dict(saved)
    if had.layer_attentions != config.layer_attentions or had.layer_options != config.layer_options:
        raise ValueError(
            f"the weights in {where} were trained with attention={had.attention!r} {had.attention_options or ''} and "
            f"the config asks for {config.attention!r} {config.attention_options or ''}; to swap it on purpose, run"
            " `cosformer convert`, or build the model and load the other's state dict into it"
        )


def _check_whole_body(info: dict[str, Any], where: Any, new_attention: bool) -> None:
    """Heads may be new; embeddings and layers must be all there, and nothing else, or the config is not the weights'.

    ``new_attention``: another mechanism was asked for, whose own parameters start from scratch.
    """
    body = ("embeddings.", "layers.", "final_norm.")
    for kind, what in (("missing_keys", "lack"), ("unexpected_keys", "hold, but the config has no place for,")):
        keys = sorted(key for key in info[kind] if re.sub(r"^(model\.)?((en|de)coder\.)?", "", key).startswith(body))
        if new_attention:
            keys = [key for key in keys if ".attention.attention." not in key]
        if keys:
            shown = ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
            raise ValueError(f"the weights in {where} {what} {shown}; use the config they were saved with")


def _align(model: nn.Module) -> None:
    """Weights mapped from a file may start anywhere; kernels then add in another order, and bits differ from before."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % 64:
            tensor.data = tensor.data.clone()
