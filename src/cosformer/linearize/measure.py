"""How near a linearized model is to its teacher, on rows of text."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.linearize.repair import as_teacher, mean_state
from cosformer.linearize.transfer import no_cache


def precision(dtype: str, device: str = "cpu") -> AbstractContextManager[Any]:
    """Inside, matrix products are of ``dtype``: float32 (as it is) or bfloat16."""
    return nullcontext() if dtype == "float32" else torch.autocast(device, getattr(torch, dtype))


@torch.no_grad()
def perplexity(model: Any, ids: Tensor) -> float:
    """Of every token of ``ids [B,N]`` but the first of each row, given those before it in its row."""
    total = 0.0
    for row in ids.split(1):
        hidden = model.base_model(input_ids=row, **no_cache(model)).last_hidden_state
        for piece, words in zip(hidden[:, :-1].split(1024, 1), row[:, 1:].split(1024, 1), strict=True):
            logits = model.get_output_embeddings()(piece)  # a piece at a time: a row's logits take gigabytes
            total += float(F.cross_entropy(logits[0].float(), words[0], reduction="sum"))
    return math.exp(total / (ids.numel() - len(ids)))


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
    """Perplexity beside the teacher's for a causal language model, otherwise the similarity of the rows' mean states."""
    if model.config.learned["causal"] and model.get_output_embeddings() is not None:
        with as_teacher(model):
            teacher = perplexity(model, ids)
        return {"perplexity": perplexity(model, ids), "teacher's perplexity": teacher}
    return {"cosine to the teacher": similarity(model, ids, mask)}
