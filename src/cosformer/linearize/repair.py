"""Repair: low-rank updates of the attention projections, trained so that the model's predictions match its teacher's.

The teacher is the same model with softmax in every layer and without the changes.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D  # GPT-2's linear layer

from cosformer.hf.linearized import learned_attention, mechanisms, replaced_mechanisms
from cosformer.linearize.transfer import no_cache

_ATTENTION = re.compile("attn|attention", re.IGNORECASE)


def projections(model: Any) -> dict[str, nn.Module]:
    """The linear layers of the attention layers, by the names that the whole model gives them."""
    prefix = next((f"{name}." for name, module in model.named_modules() if name and module is model.base_model), "")
    roots = set()
    for layer in model.config.learned["layers"]:
        parts = layer.split(".")
        # BERT's output projection stands beside the module that attends: go up while it is still called attention
        while len(parts) > 1 and _ATTENTION.search(parts[-2]):
            parts.pop()
        roots.add(prefix + ".".join(parts) + ".")
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and any(name.startswith(root) for root in roots)
    }


def add_adapters(model: Any, rank: int, seed: int) -> list[nn.Parameter]:
    """LoRA on the projections; the parameters to train: these and the maps."""
    from peft import LoraConfig, inject_adapter_in_model

    found = projections(model)
    transposed = any(isinstance(module, Conv1D) for module in found.values())
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(found), fan_in_fan_out=transposed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    maps = [p for mechanism in mechanisms(model).values() for p in mechanism.parameters()]
    for parameter in maps:
        parameter.requires_grad_(True)
    adapters = [p for name, p in model.named_parameters() if "lora_" in name]
    return adapters + maps


def merge_adapters(model: Any) -> None:
    """Add the low-rank changes to the weights, and leave the model as it was built."""
    for name, module in _adapted(model):
        module.merge()
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, module.get_base_layer())
    if hasattr(model, "peft_config"):
        del model.peft_config
    model._hf_peft_config_loaded = False
    model.requires_grad_(True)


@contextmanager
def as_teacher(model: Any) -> Iterator[None]:
    """Inside, the model is the original."""
    plan = learned_attention(model.config)
    adapted = [module for _, module in _adapted(model)]
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(replaced_mechanisms(model, {name: plan.softmax() for name in plan.layers}))
        for module in adapted:
            module.enable_adapters(False)
        try:
            yield
        finally:
            for module in adapted:
                module.enable_adapters(True)
            for parameter in (p for name, p in model.named_parameters() if "lora_" in name):
                parameter.requires_grad_(True)


def repair_loss(model: Any, ids: Tensor, mask: Tensor, against: str) -> Tensor:
    """How far the model is from its teacher, or from the text, on ``ids [B,N]``."""
    if against == "text":
        inputs = {"input_ids": ids, "attention_mask": mask, **no_cache(model)}
        return model(**inputs, labels=ids.masked_fill(mask == 0, -100)).loss
    with as_teacher(model):
        target = outputs(model, ids, mask)
    return divergence(model, outputs(model, ids, mask), target, mask)


@torch.no_grad()
def layer_costs(model: Any, ids: Tensor, mask: Tensor) -> dict[str, float]:
    """Layer -> divergence of the model from its teacher when only this layer is linear."""
    plan = learned_attention(model.config)
    with as_teacher(model):
        target = outputs(model, ids, mask)
    costs = {}
    for name in plan.layers:
        with replaced_mechanisms(model, {other: plan.softmax() for other in plan.layers if other != name}):
            costs[name] = float(divergence(model, outputs(model, ids, mask), target, mask))
    return costs


def outputs(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """What :func:`divergence` compares: last states ``[B,N,C]`` of decoders and of bare models, otherwise logits."""
    inputs = {"input_ids": ids, "attention_mask": mask, **no_cache(model)}
    if _writes(model) or model is model.base_model:
        return model.base_model(**inputs).last_hidden_state
    return model(**inputs).logits


def divergence(model: Any, out: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Per token from the teacher's outputs: KL divergence, or the error of hidden states where there are no logits."""
    if model is model.base_model:
        return hidden_error(out, target, mask)
    rows = (mask != 0) if out.dim() == 3 else torch.ones(len(out), dtype=torch.bool, device=out.device)
    head = model.get_output_embeddings() if _writes(model) else nn.Identity()

    def piece(mine: Tensor, theirs: Tensor) -> Tensor:
        logs, wanted = (head(x).float().log_softmax(-1) for x in (mine, theirs))
        return F.kl_div(logs, wanted, reduction="sum", log_target=True)

    # piece by piece, and computed again for the backward pass: the logits of a long row take gigabytes
    pieces = zip(out[rows].split(512), target[rows].split(512), strict=True)
    return sum(checkpoint(piece, mine, theirs, use_reentrant=False) for mine, theirs in pieces) / rows.sum()


def _writes(model: Any) -> bool:
    """Whether it is a causal language model, whose logits are those of its head on the last states."""
    return model.config.learned["causal"] and model.get_output_embeddings() is not None


def hidden_error(out: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Of hidden states ``[B,N,C]``: relative squared error of each token, and the distance of the rows' means."""
    rows = mask != 0
    tokens = (out - target)[rows].float().square().sum() / target[rows].float().square().sum()
    return tokens + 1 - F.cosine_similarity(mean_state(out, mask), mean_state(target, mask)).mean()


def mean_state(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean ``[B,C]`` of the tokens that are not padding."""
    weights = (mask != 0).to(torch.float32)[..., None]
    return (hidden.float() * weights).sum(1) / weights.sum(1)


def _adapted(model: nn.Module) -> list[tuple[str, Any]]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [(name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
