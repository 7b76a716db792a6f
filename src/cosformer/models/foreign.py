"""Which checkpoints of other families our classes load, and how."""

import dataclasses
from typing import Any

from transformers import AutoConfig

from cosformer.models import llama, roberta
from cosformer.models.config import CosformerConfig

# model type -> (their config -> ours, their names -> ours)
FAMILIES: dict[str, tuple[Any, dict[str, str]]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), (llama.config_from_llama, llama.NAMES)),
    "roberta": (roberta.config_from_roberta, roberta.NAMES),
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
