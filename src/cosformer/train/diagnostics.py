"""What a user of linear attention wants to know of each layer: denominators near zero, and gradients."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cosformer.attention.base import Attention
from cosformer.attention.cosformer import Cosformer
from cosformer.attention.feature_maps import FeatureMap
from cosformer.ops.dispatch import attend
from cosformer.ops.operator import linear_attention
from cosformer.ops.spec import AttentionSpec, Call


class Diagnostics:
    """Watches the attentions of ``model``: the last batch before :meth:`read` is the one that is reported."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = list(getattr(getattr(model, "model", model), "layers", []))
        self.attentions = [next(m for m in layer.modules() if isinstance(m, Attention)) for layer in self.layers]
        self._seen: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}
        self._norms: list[float | None] = [None] * len(self.layers)
        for index, attention in enumerate(self.attentions):
            attention.register_forward_pre_hook(partial(self._keep, index))

    def _keep(self, index: int, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training:
            q, k, _, *mask = inputs
            self._seen[index] = (q.detach(), k.detach(), mask[0] if mask else None)

    def take_gradients(self) -> None:
        """Note each layer's gradient norm; called between the backward pass and the update."""
        for index, layer in enumerate(self.layers):
            squares = [float(p.grad.detach().float().square().sum()) for p in layer.parameters() if p.grad is not None]
            self._norms[index] = math.sqrt(math.fsum(squares)) if squares else None

    def read(self) -> list[dict[str, Any]]:
        """One dict a layer; None where the attention has no denominator (softmax, patterns)."""
        found = []
        for index, attention in enumerate(self.attentions):
            smallest = share = None
            if index in self._seen:
                rows = denominators(attention, *self._seen[index])
                if rows is not None:
                    smallest, share = float(rows.min()), float((rows == 0).double().mean())
            found.append(
                {"layer": index, "smallest_denominator": smallest, "zero_share": share, "grad_norm": self._norms[index]}
            )
        self._seen.clear()
        return found


@torch.no_grad()
def denominators(attention: Attention, q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor | None:
    """Row sums of the weights before they are divided by, ``[B,H,N]``; None for attentions that have none."""
    ones = torch.ones(*k.shape[:3], 1, dtype=q.dtype, device=q.device)
    if isinstance(attention, Cosformer):
        length = attention.max_len
        spec = AttentionSpec.cosine(length, causal=attention.causal, normaliser="none")
        call = Call(q, k, ones, None, None, key_mask, None, None, spec)
        found = attend(call, None, False, max_len=length, backend="auto")
        assert isinstance(found, Tensor)  # without return_state
        return found[..., 0]
    if isinstance(attention, FeatureMap) and type(attention).attend is FeatureMap.attend:
        fq, fk = attention.features(q, k, first=0, fresh=False)
        ones, causal, relu = ones.to(fq.dtype), attention.causal, attention.relu
        found = linear_attention(fq, fk, ones, causal=causal, key_mask=key_mask, relu=relu, normaliser="none")
        return found[..., 0]
    return None


def first_bad(model: nn.Module, batch: dict[str, Any]) -> str:
    """The first module in the forward pass whose output on ``batch`` is not finite; else the first gradient."""
    found: list[str] = []

    def check(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        tensors = [x for x in (output if isinstance(output, tuple) else (output,)) if isinstance(x, Tensor)]
        if not found and any(not bool(torch.isfinite(x).all()) for x in tensors if x.is_floating_point()):
            found.append(name)

    # a module is called after its children: the first to complain is the innermost
    hooks = [
        module.register_forward_hook(partial(check, name or "the model")) for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"the output of {found[0]}"
    for name, p in model.named_parameters():
        if p.grad is not None and not bool(torch.isfinite(p.grad).all()):
            return f"the gradient of {name}"
    return "the loss"
