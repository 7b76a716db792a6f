"""Modules: cosFormer attention between projections, any attention of the zoo likewise, and the transformer block."""

from cosformer.nn.block import Block
from cosformer.nn.cosformer_attention import CosformerAttention
from cosformer.nn.feed_forward import FeedForward
from cosformer.nn.multihead import MultiHead

__all__ = ["Block", "CosformerAttention", "FeedForward", "MultiHead"]
