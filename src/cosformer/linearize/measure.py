"""How near a linearized model is to its teacher, on rows of text; and the card that says so."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer._version import __version__
from cosformer.hf.linearized import LearnedAttention
from cosformer.linearize.repair import as_teacher, mean_state
from cosformer.linearize.transfer import no_cache


def precision(dtype: str, device: str = "cpu") -> AbstractContextManager[Any]:
    """Inside, matrix products are of ``dtype``: float32 (as it is) or bfloat16."""
    return nullcontext() if dtype == "float32" else torch.autocast(device, getattr(torch, dtype))


def perplexity(model: Any, ids: Tensor) -> float:
    """Of every token of ``ids [B,N]`` but the first of each row, given those before it in its row."""
    return math.exp(token_losses(model, ids).double().mean())


@torch.no_grad()
def token_losses(model: Any, ids: Tensor) -> Tensor:
    """Of every token of ``ids [B,N]`` but the first of each row: ``[B,N-1]``."""
    found = []
    for row in ids.split(1):
        hidden = model.base_model(input_ids=row, **no_cache(model)).last_hidden_state
        # a slice at a time: a row's logits take gigabytes
        for states, words in zip(hidden[:, :-1].split(1024, 1), row[:, 1:].split(1024, 1), strict=True):
            logits = model.get_output_embeddings()(states)
            found.append(F.cross_entropy(logits[0].float(), words[0], reduction="none"))
    return torch.cat(found).view(len(ids), -1)


@torch.no_grad()
def similarity(model: Any, ids: Tensor, mask: Tensor) -> float:
    """Mean cosine between the teacher's and the model's mean states of the rows."""
    found = []
    for row, keep in zip(ids.split(32), mask.split(32), strict=True):
        out = model.base_model(input_ids=row, attention_mask=keep).last_hidden_state
        with as_teacher(model):
            target = model.base_model(input_ids=row, attention_mask=keep).last_hidden_state
        found.append(F.cosine_similarity(mean_state(out, keep), mean_state(target, keep)))
    return float(torch.cat(found).mean())


def measure(model: Any, ids: Tensor, mask: Tensor) -> dict[str, float]:
    """Perplexity next to the teacher's for a causal language model, otherwise the similarity of mean states."""
    if model.config.learned["causal"] and model.get_output_embeddings() is not None:
        with as_teacher(model):
            teacher = perplexity(model, ids)
        return {"perplexity": perplexity(model, ids), "teacher's perplexity": teacher}
    return {"cosine to the teacher": similarity(model, ids, mask)}


def card(record: dict[str, Any], plan: LearnedAttention) -> str:
    """What was done and what was measured, as the markdown of a model card."""
    settings, kept, tokens = record["settings"], plan.kept, record["tokens"]
    linear = len(plan.layers) - len(kept)
    if plan.window:
        what = f"softmax over {plan.sinks} sinks and the last {plan.window} keys"
        what += f", {plan.features} learned features a head for the keys between, and a gate" if plan.features else ""
    else:
        what = f"`{plan.attention}` on {plan.features} learned features a head"
    done = [
        f"Linearized with cosformer {__version__} (`cosformer linearize`): {linear} of {len(plan.layers)} attention "
        f"layers run {what}; full softmax stays in {', '.join(kept) or 'none'}.",
        f"Longest sequence of the original: {plan.max_len} tokens.",
        f"Transfer: {tokens['transfer']:,} tokens in rows of {settings['length']}, each layer's maps taught its softmax"
        " attention's output.",
        f"Repair: {tokens['repair']:,} tokens, LoRA of rank {settings['rank']} on the attention's projections and the"
        f" maps, against the {settings['against']}; merged into the weights.",
    ]
    names = list(dict.fromkeys(name for scores in record["measured"].values() for name in scores))
    table = [f"| stage | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for stage, scores in record["measured"].items():
        table.append(f"| {stage} | {' | '.join(f'{scores[name]:.4g}' for name in names)} |")
    held_out = f"Measured on {settings['held_out']} rows of the text that were held out:"
    return "\n\n".join(["\n".join(f"* {line}" for line in done), held_out, "\n".join(table)])
