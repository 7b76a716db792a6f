"""Rotary angles of a model, made by transformers' own code, so that every scaling of Llama's family has its meaning here."""

from typing import Any

from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from cosformer.models.config import CosformerConfig


def build_rotation(config: CosformerConfig) -> nn.Module | None:
    """A module of (x, position_ids) that returns cos and sin, ``[B or 1, N, head_dim]``; None without rotary positions."""
    if config.rotary is None:
        return None
    sizes: dict[str, Any] = {"hidden_size": config.hidden_size, "num_attention_heads": config.num_attention_heads}
    sizes |= {"head_dim": config.head_dim, "max_position_embeddings": config.max_position_embeddings}
    return LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=dict(config.rotary)))
