"""The attention matrices of stock transformers models, with their own attention or with ours."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cosformer.models.attention_weights import attention_weights
from cosformer.models.pretrained import CosformerPreTrainedModel


def model_weights(model: PreTrainedModel, input_ids: Tensor) -> list[Tensor]:
    """``input_ids [B,N]`` -> for each layer the weights ``[B,H,N,N]``, of our models and of stock ones."""
    if isinstance(model, CosformerPreTrainedModel):
        return attention_weights(model, input_ids)
    return _stock_weights(model, input_ids)


@torch.no_grad()
def _stock_weights(model: PreTrainedModel, input_ids: Tensor) -> list[Tensor]:
    """Attention of either kind is linear in v: the model's own function is called once more, with the identity for v."""
    found: list[Tensor] = []
    own = str(model.config._attn_implementation)
    name = (
        "sdpa" if own == "eager" else own
    )  # eager attention is not looked up in the table; sdpa is the same mathematics
    inner = ALL_ATTENTION_FUNCTIONS[name]

    def watch(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        s = key.shape[2]
        identity = torch.eye(s, dtype=value.dtype, device=value.device).expand(*key.shape[:2], s, s)
        weights, _ = inner(module, query, key, identity, *args, **kwargs)
        found.append(weights.transpose(1, 2))  # [B,N,H,S]
        return inner(module, query, key, value, *args, **kwargs)

    training = model.training
    model.eval()
    model.set_attn_implementation(name)
    ALL_ATTENTION_FUNCTIONS[name] = watch
    try:
        model.base_model(input_ids=input_ids, use_cache=False)
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
        model.set_attn_implementation(own)
        model.train(training)
    if not found:
        raise ValueError(f"{type(model).__name__} does not use transformers' attention interface; it cannot be watched")
    return found
