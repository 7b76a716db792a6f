"""The attention matrices of a model on given input: every mechanism is linear in v, so the identity brings them out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cosformer.models.pretrained import CosformerPreTrainedModel
from cosformer.nn.multihead import MultiHead


def model_weights(model: PreTrainedModel, input_ids: Tensor) -> list[Tensor]:
    """``input_ids [B,N]`` -> for each layer the weights ``[B,H,N,N]``, of our models and of stock ones."""
    if isinstance(model, CosformerPreTrainedModel):
        return attention_weights(model, input_ids)
    return _stock_weights(model, input_ids)


@torch.no_grad()
def attention_weights(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None) -> list[Tensor]:
    """``input_ids [B,N]`` -> for each layer the weights ``[B,H,N,N]`` (one position more where the model puts a vector
    of its own first). The model runs in eval mode; its outputs are not changed by the watching."""
    found: list[Tensor] = []

    def watch(module: MultiHead, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, key_mask = args[0], args[1] if len(args) > 1 else kwargs.get("key_mask")
        q, k, _ = module.heads(x, key_mask, kwargs.get("rotation"))
        n = x.shape[1]
        identity = torch.eye(n, dtype=x.dtype, device=x.device).expand(*k.shape[:2], n, n)
        found.append(module.attention(q, k, identity, key_mask))

    layers = [module for module in model.modules() if type(module) is MultiHead]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no layer of this package; its attention cannot be watched")
    hooks = [layer.register_forward_pre_hook(watch, with_kwargs=True) for layer in layers]
    training = model.training
    body = getattr(model, "base_model", model)  # the head does not matter
    try:
        model.eval()
        body(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training)
    return found


@torch.no_grad()
def _stock_weights(model: PreTrainedModel, input_ids: Tensor) -> list[Tensor]:
    """The model's own attention function, or ours, is called once more with the identity for v."""
    found: list[Tensor] = []
    own = str(model.config._attn_implementation)
    # eager attention is not looked up in the table; sdpa is the same mathematics
    name = "sdpa" if own == "eager" else own
    inner = ALL_ATTENTION_FUNCTIONS[name]

    def watch(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        s = key.shape[2]
        identity = torch.eye(s, dtype=value.dtype, device=value.device).expand(*key.shape[:2], s, s)
        weights, _ = inner(module, query, key, identity, *args, **kwargs)
        found.append(weights.transpose(1, 2))  # [B,N,H,S]
        return inner(module, query, key, value, *args, **kwargs)

    training = model.training
    model.eval()
    try:
        with replaced_function(model, name, watch):
            model.base_model(input_ids=input_ids, use_cache=False)
    finally:
        model.train(training)
    if not found:
        raise ValueError(f"{type(model).__name__} does not use transformers' attention interface; it cannot be watched")
    return found


@contextmanager
def replaced_function(model: PreTrainedModel, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Inside, a stock model runs attention ``name``, and that is this function."""
    own = str(model.config._attn_implementation)
    model.set_attn_implementation(name)
    ALL_ATTENTION_FUNCTIONS[name] = function
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
        model.set_attn_implementation(own)
