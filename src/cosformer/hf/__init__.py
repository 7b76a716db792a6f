"""Meets Hugging Face transformers: importing this registers our models, and our attention for stock models."""

from functools import partial

import transformers
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig

from cosformer.hf.attention import MULTISCALE, NAME, cosformer_forward, cosformer_mask
from cosformer.hf.convert import convert, register_configs
from cosformer.hf.guard import guard_stock_models
from cosformer.hf.linearized import LEARNED, learned_forward
from cosformer.models.auto_map import publish
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.classification import (
    CosformerForImageClassification,
    CosformerForMultipleChoice,
    CosformerForPairClassification,
    CosformerForSequenceClassification,
)
from cosformer.models.compiled_step import compile_step
from cosformer.models.config import AUTO_CLASSES, CosformerConfig
from cosformer.models.encoder_decoder import CosformerForConditionalGeneration
from cosformer.models.forecasting import CosformerForForecasting
from cosformer.models.masked_lm import CosformerForMaskedLM
from cosformer.models.state_cache import StateCache
from cosformer.models.token_classification import CosformerForQuestionAnswering, CosformerForTokenClassification
from cosformer.models.transformer import CosformerModel

AutoConfig.register("cosformer", CosformerConfig, exist_ok=True)
for _auto, _name in AUTO_CLASSES.items():
    getattr(transformers, _auto).register(CosformerConfig, globals()[_name], exist_ok=True)
    publish(globals()[_name])

# for stock models: from_pretrained(..., attn_implementation="cosformer")
AttentionInterface.register(NAME, cosformer_forward)
AttentionInterface.register(MULTISCALE, partial(cosformer_forward, decays=True))
for _name in (NAME, MULTISCALE, LEARNED):
    AttentionMaskInterface.register(_name, cosformer_mask)
# for models that `cosformer linearize` wrote
AttentionInterface.register(LEARNED, learned_forward)
guard_stock_models()
register_configs()

__all__ = [
    "CosformerConfig",
    "CosformerForCausalLM",
    "CosformerForConditionalGeneration",
    "CosformerForForecasting",
    "CosformerForImageClassification",
    "CosformerForMaskedLM",
    "CosformerForMultipleChoice",
    "CosformerForPairClassification",
    "CosformerForQuestionAnswering",
    "CosformerForSequenceClassification",
    "CosformerForTokenClassification",
    "CosformerModel",
    "StateCache",
    "compile_step",
    "convert",
]
