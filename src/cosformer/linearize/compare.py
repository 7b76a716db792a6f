"""A linearized model beside its original, on text that neither has seen: what the tables of results hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, DynamicCache

from cosformer.attention.key_value_state import KeyValueState
from cosformer.linearize.measure import perplexity, precision
from cosformer.linearize.repair import mean_state
from cosformer.linearize.text import read_text
from cosformer.models.config import CosformerConfig
from cosformer.models.state_cache import StateCache, StateLayer


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


def perplexities(model: Any, ids: Tensor, contexts: list[int]) -> dict[str, float]:
    """Perplexity of the stream ``ids [N]`` cut into rows of each length."""
    found = {}
    for context in contexts:
        rows = ids[: len(ids) // context * context].view(-1, context)
        if not len(rows):
            raise ValueError(f"context={context}: the text has {len(ids)} tokens; give more, or a shorter context")
        found[f"perplexity at {context}"] = perplexity(model, rows)
    return found


def cache_megabytes(model: Any, tokens: int) -> float:
    """What the model carries after ``tokens`` tokens of one sequence, worked out from what it carries after one."""
    keeps_states = isinstance(model.config, CosformerConfig) or getattr(model.config, "learned", None)
    cache: Any = StateCache() if keeps_states else DynamicCache()
    with torch.no_grad():
        model.base_model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache)
    total = 0
    for layer in cache.layers:
        if not isinstance(layer, StateLayer):
            total += tokens * (layer.keys.nbytes + layer.values.nbytes)
        else:
            total += layer.nbytes * (tokens if isinstance(layer.state, KeyValueState) else 1)
    return total / 1e6


def continuation(model: Any, tokenizer: Any, ids: Tensor, tokens: int = 40) -> str:
    """What the model writes after ``ids [N]``, always the likeliest token."""
    rows = ids[None]
    out = model.generate(rows, max_new_tokens=tokens, do_sample=False, attention_mask=torch.ones_like(rows))
    return tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)


def compare_models(
    models: list[str],
    text: list[Path],
    *,
    tokens: int,
    contexts: list[int],
    continue_after: int,
    lines: int,
    length: int,
    dtype: str,
) -> Iterator[dict[str, Any]]:
    """The scores of each model on ``text``; those of an encoder are against the first, the original."""
    words = read_text(text)
    tokenizer = AutoTokenizer.from_pretrained(models[0])
    target: Tensor | None = None
    for name in models:
        model = load(name)
        if model.get_output_embeddings() is not None:
            ids = torch.tensor(tokenizer(words, add_special_tokens=False, verbose=False).input_ids)[:tokens]
            with precision(dtype):
                scores = perplexities(model, ids, contexts)
            if "local" not in str(getattr(model.config, "attention", "")):  # whose cache stops growing at its window
                scores |= {f"cache MB at {n}": cache_megabytes(model, n) for n in (1024, 8192, 65536)}
            found = {"model": name, "scores": scores}
            if continue_after:
                goes_on = continuation(model, tokenizer, ids[:continue_after])
                found["text"] = {"after": continue_after, "goes on": goes_on}
            yield found
            continue
        filled = [line for line in words.splitlines() if line.strip()]
        with precision(dtype):
            vectors = embeddings(model, tokenizer, filled[:lines], length)
        target = vectors if target is None else target
        yield {"model": name, "scores": compare_embeddings(target, vectors)}


def load(name: str) -> Any:
    """The model of the class it was saved as, in float32."""
    import cosformer.hf  # noqa: F401  (registers our classes)

    config = AutoConfig.from_pretrained(name)
    writes = any("CausalLM" in made for made in config.architectures or ())
    kind = AutoModelForCausalLM if writes else AutoModel
    return kind.from_pretrained(name, dtype=torch.float32).eval()
