"""Extends learned positions by repeating the table, as Longformer was initialised from RoBERTa."""

from typing import Any

import torch
from torch import Tensor, nn


def repeated(table: Tensor, length: int, first: int = 0) -> Tensor:
    """``table`` with the rows from ``first`` on repeated until there are ``length`` of them; the rows before it stay in
    front.

    Position i starts as position i mod n of the n trained ones: near tokens keep the order they were trained with.
    """
    rows = table[first:]
    return torch.cat((table[:first], rows[torch.arange(length, device=table.device) % len(rows)]))


@torch.no_grad()
def extend_positions(model: Any, length: int) -> None:
    """Let a stock encoder of transformers read ``length`` tokens, in place."""
    first = first_position(model.config)
    tables = [
        name
        for name, module in model.named_modules()
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding)
    ]
    if not tables:
        raise ValueError(
            f"a model of type {model.config.model_type!r} has no table of positions to extend; use shorter rows"
        )
    for name in tables:
        parent, old = model.get_submodule(name.rpartition(".")[0]), model.get_submodule(name)
        new = nn.Embedding(first + length, old.embedding_dim, padding_idx=old.padding_idx, dtype=old.weight.dtype)
        new.weight.copy_(repeated(old.weight, length, first))
        parent.position_embeddings = new
        parent.register_buffer("position_ids", torch.arange(first + length).unsqueeze(0), persistent=False)
        if getattr(parent, "token_type_ids", None) is not None:
            parent.register_buffer("token_type_ids", torch.zeros(1, first + length, dtype=torch.long), persistent=False)
    model.config.max_position_embeddings = first + length


def first_position(config: Any) -> int:
    """The row of a position table that the first token takes: RoBERTa's family counts from behind the padding id."""
    if config.model_type == "cosformer":
        return config.position_offset
    return config.pad_token_id + 1 if config.model_type.removeprefix("cosformer_") == "roberta" else 0
