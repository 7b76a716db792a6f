"""The attention matrices of a model on given input: every mechanism is linear in v, so the identity brings them out."""

from typing import Any

import torch
from torch import Tensor, nn

from cosformer.nn.multihead import MultiHead


@torch.no_grad()
def attention_weights(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None) -> list[Tensor]:
    """``input_ids [B,N]`` -> for each layer the weights ``[B,H,N,N]`` (one position more where the model puts a vector of
    its own first). The model runs in eval mode; its outputs are not changed by the watching."""
    found: list[Tensor] = []

    def watch(module: MultiHead, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, key_mask = args[0], args[1] if len(args) > 1 else kwargs.get("key_mask")
        q, k, _ = module.heads(x, kwargs.get("rotation"))
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
