"""Which checkpoints of other families our classes load, and how."""

import dataclasses
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from cosformer.models import llama
from cosformer.models.config import CosformerConfig

# model type -> (their config -> ours, their names -> ours)
FAMILIES: dict[str, tuple[Any, dict[str, str]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), (llama.config_from_llama, llama.NAMES)),
}
_FIELDS = {field.name for field in dataclasses.fields(CosformerConfig)} | CosformerConfig.attribute_map.keys()  # pyright: ignore
_FIELDS -= {"dtype"}


def translate(where: Any, model_type: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments for ``from_pretrained`` that load ``where`` into our classes; fields of our config in ``kwargs`` change it."""
    make, names = FAMILIES[model_type]
    changes = {name: value for name, value in kwargs.items() if name in _FIELDS}
    rest = {name: value for name, value in kwargs.items() if name not in _FIELDS}
    config = make(AutoConfig.from_pretrained(where), **changes)
    return {**rest, "config": config, "key_mapping": names}


@torch.no_grad()
def start_mechanisms(model: nn.Module) -> None:
    """Give each attention the parameters and random features of a new one: the checkpoint has none of them."""
    from cosformer.models.transformer import build_layer  # it imports the class whose from_pretrained calls this

    body: Any = getattr(model, "model", model)
    for index, layer in enumerate(body.layers):
        new = build_layer(body.config, index).attention.attention
        layer.attention.attention.load_state_dict(new.state_dict())
