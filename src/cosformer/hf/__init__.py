"""Meets Hugging Face transformers: importing this registers our models, and our attention for stock models."""

from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from cosformer.hf.attention import NAME, cosformer_forward, cosformer_mask
from cosformer.hf.convert import convert, register_configs
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.classification import CosformerForPairClassification, CosformerForSequenceClassification
from cosformer.models.config import CosformerConfig
from cosformer.models.masked_lm import CosformerForMaskedLM
from cosformer.models.state_cache import StateCache
from cosformer.models.transformer import CosformerModel

AutoConfig.register("cosformer", CosformerConfig, exist_ok=True)
AutoModel.register(CosformerConfig, CosformerModel, exist_ok=True)
AutoModelForCausalLM.register(CosformerConfig, CosformerForCausalLM, exist_ok=True)
AutoModelForMaskedLM.register(CosformerConfig, CosformerForMaskedLM, exist_ok=True)
AutoModelForSequenceClassification.register(CosformerConfig, CosformerForSequenceClassification, exist_ok=True)

# for stock models: from_pretrained(..., attn_implementation="cosformer")
AttentionInterface.register(NAME, cosformer_forward)
AttentionMaskInterface.register(NAME, cosformer_mask)
register_configs()

__all__ = [
    "CosformerConfig",
    "CosformerForCausalLM",
    "CosformerForMaskedLM",
    "CosformerForPairClassification",
    "CosformerForSequenceClassification",
    "CosformerModel",
    "StateCache",
    "convert",
]
