"""Embeddings of token ids, pixels or readings: tokens, patches, positions, token types and the CLS vector."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from cosformer.models.adaptive import AdaptiveEmbedding, WordTable
from cosformer.models.config import CosformerConfig


class Embeddings(nn.Module):
    """Sum of token, position and token-type embeddings, then norm and dropout as the config says."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        pad = config.pad_token_id
        if config.adaptive_cutoffs is None:
            std = config.initializer_range if config.embedding_range is None else config.embedding_range
            self.tokens = WordTable(config.vocab_size, size, std=std, padding_idx=pad)
        else:
            cutoffs, factor = config.adaptive_cutoffs, config.adaptive_factor
            self.tokens = AdaptiveEmbedding(config.vocab_size, size, cutoffs, factor=factor, padding_idx=pad)
        self.scale = math.sqrt(size) if config.scale_embedding else 1.0
        self.position_type, self.offset = config.position_embedding_type, config.position_offset
        if self.position_type == "learned":
            self.positions = nn.Embedding(config.max_position_embeddings + self.offset, size)
        self.types = nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.cls = nn.Parameter(torch.zeros(size)) if config.cls_token else None
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, position_ids: Tensor, type_ids: Tensor | None
    ) -> Tensor:
        """ids ``[B,N]`` or vectors ``[B,N,C]``, positions ``[B or 1, N']`` (N' = N + 1 with CLS) -> ``[B,N',C]``."""
        x = self.tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.scale != 1:
            x = x * self.scale
        if self.types is not None:
            x = x + (self.types.weight[0] if type_ids is None else self.types(type_ids))
        elif type_ids is not None and bool(type_ids.any()):
            raise ValueError("token_type_ids given to a model without token types; build it with type_vocab_size")
        if self.cls is not None:
            x = torch.cat((self.cls.to(x.dtype).expand(x.shape[0], 1, -1), x), dim=1)
        if self.position_type == "learned":
            x = x + self.positions(position_ids + self.offset)
        elif self.position_type == "sinusoidal":
            x = x + sinusoids(position_ids, x.shape[-1], torch.promote_types(x.dtype, torch.float32)).to(x.dtype)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)


class Patches(nn.Module):
    """Square patches, row by row, each through one linear map; patches of one pixel are pixels."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__()
        size, self.image_size = config.patch_size, config.image_size
        self.num_channels = config.num_channels
        self.project = nn.Conv2d(config.num_channels, config.hidden_size, kernel_size=size, stride=size)

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, patches, C]"""
        expected = (self.num_channels, self.image_size, self.image_size)
        if pixels.shape[1:] != expected:
            raise ValueError(
                f"pixel_values have shape {tuple(pixels.shape)}; expected [batch, {', '.join(map(str, expected))}]"
            )
        return self.project(pixels.to(self.project.weight.dtype)).flatten(2).transpose(1, 2)


class Readings(nn.Module):
    """Real values of each step, standardized as the config says, through one linear map."""

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__()
        self.channels = config.num_input_channels or 0
        self.mean = config.channel_mean or [0.0] * self.channels
        self.scale = config.channel_scale or [1.0] * self.channels
        self.project = nn.Linear(self.channels, config.hidden_size)

    def forward(self, values: Tensor) -> Tensor:
        """[B,N,channels] -> [B,N,C]"""
        return self.project(self.standardized(values).to(self.project.weight.dtype))

    def standardized(self, values: Tensor) -> Tensor:
        """``values [..., channels]`` minus the mean of their channel, over its scale."""
        if values.shape[-1] != self.channels:
            raise ValueError(
                f"input_values have shape {tuple(values.shape)}; expected [batch, steps, {self.channels}], a number "
                "for each channel"
            )
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        return (values - values.new_tensor(self.mean)) / values.new_tensor(self.scale)

    def in_units(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`standardized`."""
        return values * values.new_tensor(self.scale) + values.new_tensor(self.mean)


def sinusoids(positions: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """int ``[..., N]`` -> ``[..., N, size]``: sine and cosine in turn, wavelengths from 2 pi to 20,000 pi."""
    steps = torch.arange(0, size, 2, device=positions.device, dtype=dtype)
    angles = positions.unsqueeze(-1) * torch.exp(steps * (-math.log(10_000.0) / size))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :size]


def build_rotation(config: CosformerConfig) -> nn.Module | None:
    """A module of (x, position_ids) that returns cos and sin, ``[B or 1, N, head_dim]``; None without rotary positions.

    transformers' own code makes them, so that every scaling of Llama's family has its meaning here.
    """
    if config.rotary is None:
        return None
    sizes: dict[str, Any] = {"hidden_size": config.hidden_size, "num_attention_heads": config.num_attention_heads}
    sizes |= {"head_dim": config.head_dim, "max_position_embeddings": config.max_position_embeddings}
    return LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=dict(config.rotary)))


def positions_from_mask(
    attention_mask: Tensor | None, seen: int, length: int, device: torch.device, before: Tensor | None = None
) -> Tensor:
    """Positions of the last ``length`` tokens, ``[B or 1, length]``: unmasked tokens are counted, so padding takes
    none.

    ``attention_mask [B, seen + length]`` covers the tokens seen before; None: nothing is masked. Where it covers the
    last tokens alone, ``before [B]`` says how many to count in front of them.
    """
    if attention_mask is None:
        return torch.arange(seen, seen + length, device=device).unsqueeze(0)
    first = -1 if before is None else before[:, None] - 1
    return (attention_mask.long().cumsum(-1) + first).clamp(min=0)[:, -length:]


def with_cls(mask: Tensor | None) -> Tensor | None:
    """``[B,N]`` -> ``[B,N+1]``: the CLS vector is never masked, even if the first token is (a black pixel)."""
    return None if mask is None else torch.cat((torch.ones_like(mask[:, :1]), mask), dim=1)
