"""What a model finds again in its context: a pass-key, and a fact, placed at some depth of other text."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

DEPTHS = (0.1, 0.5, 0.9)
_NAMES = ["Anna", "Boris", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas"]
_THINGS = ["lamp", "map", "guitar", "camera", "ladder", "clock", "kettle", "telescope", "violin", "umbrella"]
_PLACES = ["kitchen", "garden", "attic", "garage", "library", "cellar", "office", "bedroom", "stable", "church"]


def pass_key(draw: random.Random) -> tuple[str, str, str]:
    """(what is placed, the question, its answer)."""
    key = str(draw.randrange(10_000, 100_000))
    placed = f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
    return placed, "\nWhat is the pass key? The pass key is", key


def fact(draw: random.Random) -> tuple[str, str, str]:
    """(what is placed, the question, its answer)."""
    name, thing, place = (draw.choice(words) for words in (_NAMES, _THINGS, _PLACES))
    said = f"{name} keeps the {thing} in the"
    return f"\n{said} {place}.\n", f"\nQuestion: Where does {name} keep the {thing}? Answer: {said}", place


KINDS: dict[str, Callable[[random.Random], tuple[str, str, str]]] = {"pass-key": pass_key, "fact": fact}


@torch.no_grad()
def retrieval(model: Any, tokenizer: Any, ids: Tensor, lengths: Sequence[int], samples: int) -> dict[str, int]:
    """``"pass-key at 10 % of 1024"`` -> in how many of ``samples`` prompts of that many tokens the answer is exactly
    right.

    ``ids [N]`` is the text around; every model gets the same prompts.
    """
    found = {}
    for kind, make in KINDS.items():
        for length in lengths:
            for depth in DEPTHS:
                right = 0
                for sample in range(samples):
                    draw = random.Random(f"{kind} {length} {depth} {sample}")
                    prompt, answer = build_prompt(tokenizer, ids, make(draw), length, depth, draw)
                    right += says(model, tokenizer, prompt, answer)
                found[f"{kind} at {depth:.0%} of {length}".replace("%", " %")] = right
    return found


def build_prompt(
    tokenizer: Any, ids: Tensor, parts: tuple[str, str, str], length: int, depth: float, draw: random.Random
) -> tuple[Tensor, str]:
    """``length`` tokens: some of the text, what is placed at ``depth`` of it, the question; and the answer."""
    placed, question = (torch.tensor(tokenizer(part, add_special_tokens=False).input_ids) for part in parts[:2])
    room = length - len(placed) - len(question)
    if not 0 < room <= len(ids):
        raise ValueError(f"prompts of {length} tokens need {room} tokens of text around; the text has {len(ids)}")
    start = draw.randrange(len(ids) - room + 1)
    around, cut = ids[start : start + room], int(depth * room)
    return torch.cat([around[:cut], placed, around[cut:], question]), parts[2]


def says(model: Any, tokenizer: Any, prompt: Tensor, answer: str) -> bool:
    """Whether the likeliest continuation of ``prompt [N]`` begins with ``answer``."""
    tokens = len(tokenizer(f" {answer}", add_special_tokens=False).input_ids) + 1
    rows = prompt[None]
    out = model.generate(rows, max_new_tokens=tokens, do_sample=False, attention_mask=torch.ones_like(rows))
    return tokenizer.decode(out[0, len(prompt) :], skip_special_tokens=True).strip().startswith(answer)
