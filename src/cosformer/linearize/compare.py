"""A linearized model beside its original, on text that neither has seen: what the tables of results hold."""

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, DynamicCache

from cosformer.attention.key_value_state import KeyValueState
from cosformer.hf.attention import max_len_of
from cosformer.hf.convert import read_config, with_attention
from cosformer.hf.gated_window import GatedWindowState
from cosformer.hf.linearized import learned_attention, replaced_mechanisms, rotary_embedding
from cosformer.linearize.measure import precision, token_losses
from cosformer.linearize.repair import mean_state
from cosformer.linearize.retrieval import retrieval
from cosformer.linearize.text import read_text
from cosformer.models.config import CosformerConfig
from cosformer.models.state_cache import StateCache, StateLayer

DEFAULT_CONTEXTS = (1024, 8192)
ANSWER_ROOM = 16  # tokens that an answer may take


@torch.no_grad()
def embeddings(model: Any, tokenizer: Any, lines: list[str], length: int) -> Tensor:
    """The mean state ``[lines, C]`` of each line, of unit length."""
    order = sorted(range(len(lines)), key=lambda i: len(lines[i]))  # rows of like length share a batch
    found = []
    for first in range(0, len(lines), 64):
        batch = [lines[i] for i in order[first : first + 64]]
        rows = tokenizer(batch, truncation=True, max_length=length, padding=True, return_tensors="pt")
        hidden = model.base_model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).last_hidden_state
        found.append(F.normalize(mean_state(hidden, rows["attention_mask"])))
    return torch.cat(found)[torch.tensor(order).argsort()]


def neighbours(vectors: Tensor, count: int) -> Tensor:
    """The ``count`` nearest others of each row, by cosine."""
    scores = vectors @ vectors.mT
    return scores.fill_diagonal_(-2).topk(count).indices


def compare_embeddings(teacher: Tensor, student: Tensor) -> dict[str, float]:
    """Cosine of the same line's vectors, and how much of a line's neighbours both agree on."""
    ours, theirs = neighbours(student, 10), neighbours(teacher, 10)
    shared = (ours[:, :, None] == theirs[:, None]).any(-1).float().mean()
    return {
        "cosine": float((teacher * student).sum(-1).mean()),
        "top-1": float((ours[:, 0] == theirs[:, 0]).float().mean()),
        "top-10": float(shared),
    }


def perplexities(model: Any, ids: Tensor, contexts: list[int]) -> dict[str, Any]:
    """Perplexity of the stream ``ids [N]`` in rows of each length; of the longest also by position and by row."""
    found: dict[str, Any] = {"scores": {}}
    for context in contexts:
        rows = ids[: len(ids) // context * context].view(-1, context)
        if not len(rows):
            raise ValueError(f"context={context}: the text has {len(ids)} tokens; give more, or a shorter context")
        losses = token_losses(model, rows).double()
        found["scores"][f"perplexity at {context}"] = math.exp(losses.mean())
        if context == max(contexts):
            found["by position"] = by_position(losses)
            found["row losses"] = [round(x, 6) for x in losses.mean(1).tolist()]
    return found


def by_position(losses: Tensor, first: int = 1024) -> dict[str, float]:
    """Perplexity from ``losses [B,N-1]`` of the first 1,024 positions, and of each doubling after them."""
    found, start, end = {}, 0, first
    while start < losses.shape[1]:
        # the loss at index i is that of the token at position i + 1
        part = losses[:, max(start - 1, 0) : end - 1]
        found[f"{start} to {min(end, losses.shape[1] + 1)}"] = math.exp(part.mean())
        start, end = end, 2 * end
    return found


def paired_difference(mine: list[float], others: list[float]) -> tuple[float, float, float] | None:
    """Mean difference of the rows' losses and two standard errors around it; None for fewer than two rows."""
    if len(mine) < 2:
        return None
    difference = torch.tensor(mine, dtype=torch.float64) - torch.tensor(others, dtype=torch.float64)
    mean, error = float(difference.mean()), float(difference.std() / len(mine) ** 0.5)
    return mean, mean - 2 * error, mean + 2 * error


def cache_megabytes(model: Any, tokens: int) -> float:
    """The state size after ``tokens`` tokens of one sequence, computed from the size after one token."""
    if isinstance(model.config, CosformerConfig):
        cache: Any = StateCache(model.config.num_hidden_layers)
    else:
        cache = StateCache() if getattr(model.config, "learned", None) else DynamicCache()
    with torch.no_grad():
        model.base_model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache)
    total = 0
    for layer in cache.layers:
        if not isinstance(layer, StateLayer):
            total += tokens * (layer.keys.nbytes + layer.values.nbytes)
        else:
            total += layer.nbytes * (tokens if isinstance(layer.state, KeyValueState) else 1)
    return total / 1e6


@torch.no_grad()
def token_time(model: Any, ids: Tensor, tokens: int = 12) -> float:
    """Milliseconds of each of the last ``tokens`` of ``ids [N]``, one at a time, their median."""
    cache: Any = StateCache() if getattr(model.config, "learned", None) else DynamicCache()
    rows = ids[None]
    model.base_model(input_ids=rows[:, :-tokens], past_key_values=cache)
    times = []
    for token in rows[:, -tokens:].split(1, 1):
        began = time.perf_counter()
        model(input_ids=token, past_key_values=cache)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def continuation(model: Any, tokenizer: Any, ids: Tensor, tokens: int = 40) -> str:
    """What the model writes after ``ids [N]``, always the likeliest token."""
    rows = ids[None]
    out = model.generate(rows, max_new_tokens=tokens, do_sample=False, attention_mask=torch.ones_like(rows))
    return tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)


def without_far_part(model: Any, window: int) -> dict[str, nn.Module]:
    """For each linear layer of a linearized decoder the softmax over its sinks and the last ``window`` keys."""
    plan = replace(learned_attention(model.config), features=0, window=window)
    found = {}
    for index, name in enumerate(plan.layers):
        if name not in plan.kept:
            near: Any = plan.linear(index)
            near.rotary = rotary_embedding(model)
            found[name] = near.eval()
    return found


@torch.no_grad()
def equal_window(model: Any) -> int | None:
    """A window without a far part whose state is as large as the model's; None for a model without a far part."""
    cache: Any = StateCache()
    model.base_model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache)
    state = next((layer.state for layer in cache.layers if isinstance(layer.state, GatedWindowState)), None)
    if state is None:
        return None
    far = state.count.nbytes + sum(x.nbytes for x in state.far.state_dict().values())
    near = state.near
    per_key = sum(x.nbytes for x in (near.k, near.v, near.positions, near.key_mask)) / near.k.shape[2]
    return near.k.shape[2] + math.ceil(far / per_key)


def controls(name: str, student: Any, original: Any) -> Iterator[tuple[str, Any]]:
    """What a linearized decoder has to beat: window and sinks on the original's weights, and on its own, without far
    part.

    A control's model is what it says only until the next one is asked for.
    """
    plan = learned_attention(student.config)
    if not plan.window:
        return
    wider = equal_window(student)
    if original is not None:
        untrained = with_attention(original, attention="learned", learned=asdict(replace(plan, features=0)))
        windows = {plan.window: "untrained"} | ({} if wider is None else {wider: "untrained, equal state"})
        for window, what in windows.items():
            with replaced_mechanisms(untrained, without_far_part(untrained, window)):
                yield f"{name}: window {window} + {plan.sinks} sinks, {what}", untrained
    if wider is not None:
        with replaced_mechanisms(student, without_far_part(student, plan.window)):
            yield f"{name}: no far part", student


def compare_models(
    models: list[str],
    text: list[Path],
    *,
    tokens: int,
    skip: int,
    contexts: list[int] | None,
    continue_after: int,
    generate_at: list[int],
    samples: int,
    lines: int,
    length: int,
    dtype: str,
) -> Iterator[dict[str, Any]]:
    """The scores of each model on ``text``; those of an encoder are against the first, the original.

    After a linearized decoder come its :func:`controls`, on the same text.
    """
    words = read_text(text)
    for name in models:
        load_config(name)  # a mistake in the last name is said before the first model is measured
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    target: Tensor | None = None
    original: Any = None
    for name in models:
        model = load(name)
        if model.get_output_embeddings() is None:
            filled = [line for line in words.splitlines() if line.strip()]
            with precision(dtype):
                vectors = embeddings(model, tokenizer, filled[:lines], length)
            target = vectors if target is None else target
            yield {"model": name, "scores": compare_embeddings(target, vectors)}
            continue
        ids = torch.tensor(tokenizer(words, add_special_tokens=False, verbose=False).input_ids)[skip : skip + tokens]
        limit = max_len_of(load_config(models[0])) or max(*DEFAULT_CONTEXTS, *generate_at)
        rows = contexts or [n for n in DEFAULT_CONTEXTS if n <= min(limit, len(ids))] or [min(limit, len(ids))]
        prompts = [n for n in generate_at if n + ANSWER_ROOM <= limit] if samples else []
        measure = partial(_measure, tokenizer, ids, rows, continue_after, prompts, samples, dtype)
        found = measure(name, model)
        if getattr(model.config, "learned", None) is None:
            original = model if name == models[0] else original
            yield found
            continue
        yield found
        for control, what in controls(name, model, original):
            other = measure(control, what)
            difference = paired_difference(found["row losses"], other["row losses"])
            yield {**other, "student": name} | ({} if difference is None else {"student's loss minus this": difference})


def _measure(
    tokenizer: Any,
    ids: Tensor,
    contexts: list[int],
    continue_after: int,
    prompts: list[int],
    samples: int,
    dtype: str,
    name: str,
    model: Any,
) -> dict[str, Any]:
    """Everything about one language model."""
    with precision(dtype):
        found = {"model": name, **perplexities(model, ids, contexts)}
        if prompts:
            right = retrieval(model, tokenizer, ids, prompts, samples)
            found["retrieval"] = {"samples": samples, "right": right}
    if "local" not in str(getattr(model.config, "attention", "")):  # whose cache stops growing at its window
        found["scores"] |= {f"cache MB at {n}": cache_megabytes(model, n) for n in (1024, 8192, 65536)}
    if not isinstance(model.config, CosformerConfig):
        found["token ms"] = {n: token_time(model, ids[:n]) for n in contexts}
    if continue_after:
        goes_on = continuation(model, tokenizer, ids[:continue_after])
        found["text"] = {"after": continue_after, "goes on": goes_on}
    return found


def load_config(name: str) -> Any:
    import cosformer.hf  # noqa: F401  (registers our classes)

    return read_config(name)


def load(name: str) -> Any:
    """The model of the class it was saved as, in float32."""
    config = load_config(name)
    writes = any("CausalLM" in made for made in config.architectures or ())
    kind = AutoModelForCausalLM if writes else AutoModel
    return kind.from_pretrained(name, dtype=torch.float32).eval()
