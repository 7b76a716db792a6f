"""Checkpoints of Llama's family in our classes: their weights under our names, their sizes as our config."""

import dataclasses
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from cosformer.models.config import CosformerConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # model types
# their name -> ours, as regular expressions for from_pretrained's key_mapping
NAMES = {
    r"^model\.embed_tokens\.": r"model.embeddings.tokens.",
    r"^model\.norm\.": r"model.final_norm.",
    r"\.self_attn\.q_proj\.": r".attention.query.",
    r"\.self_attn\.k_proj\.": r".attention.key.",
    r"\.self_attn\.v_proj\.": r".attention.value.",
    r"\.self_attn\.o_proj\.": r".attention.output.",
    r"\.self_attn\.q_norm\.": r".attention.query_norm.",
    r"\.self_attn\.k_norm\.": r".attention.key_norm.",
    r"\.mlp\.gate_proj\.": r".feed_forward.gate.",
    r"\.mlp\.up_proj\.": r".feed_forward.widen.",
    r"\.mlp\.down_proj\.": r".feed_forward.narrow.",
    r"\.input_layernorm\.": r".attention_norm.",
    r"\.post_attention_layernorm\.": r".feed_forward_norm.",
}
_FIELDS = {field.name for field in dataclasses.fields(CosformerConfig)} | CosformerConfig.attribute_map.keys()  # pyright: ignore
_FIELDS -= {"dtype"}


def translate(where: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments for ``from_pretrained`` that load ``where`` into our classes; config fields in ``kwargs`` apply."""
    changes = {name: value for name, value in kwargs.items() if name in _FIELDS}
    rest = {name: value for name, value in kwargs.items() if name not in _FIELDS}
    config = config_from_llama(AutoConfig.from_pretrained(where), **changes)
    return {**rest, "config": config, "key_mapping": NAMES}


def config_from_llama(config: Any, **changes: Any) -> CosformerConfig:
    """Our config for a Llama, Mistral, Qwen2 or Qwen3 config; ``attention`` is softmax unless overridden."""
    kind = config.model_type
    windows = [kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"]
    if windows or (kind == "mistral" and config.sliding_window is not None):
        raise ValueError(
            f"this {kind} model attends in sliding windows, which our blocks do not; set sliding_window to None"
        )
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    same += ("intermediate_size", "hidden_act", "max_position_embeddings", "initializer_range", "tie_word_embeddings")
    same += ("pad_token_id", "bos_token_id", "eos_token_id")
    values: dict[str, Any] = {name: getattr(config, name, None) for name in same}
    values["attention_bias"] = True if kind == "qwen2" else bool(getattr(config, "attention_bias", False))
    values |= {
        "output_bias": False if kind == "qwen2" else None,
        "qk_norm": kind == "qwen3",
        "feed_forward_bias": bool(getattr(config, "mlp_bias", False)),
        "rotary": dict(config.rope_parameters),
        "layer_norm_eps": config.rms_norm_eps,
        "is_decoder": True,
        "attention": "softmax",
        "norm": "pre",
        "norm_type": "rms",
        "feed_forward_type": "gated",
        "position_embedding_type": "none",
        "hidden_dropout_prob": 0.0,
    }
    return CosformerConfig(**values | changes)


@torch.no_grad()
def start_mechanisms(model: nn.Module) -> None:
    """Give each attention the parameters and random features of a new one: the checkpoint has none of them."""
    from cosformer.models.transformer import build_layer  # it imports the class whose from_pretrained calls this

    body: Any = getattr(model, "model", model)
    for index, layer in enumerate(body.layers):
        new = build_layer(body.config, index).attention.attention
        layer.attention.attention.load_state_dict(new.state_dict())
