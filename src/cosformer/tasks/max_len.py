"""Rows must fit into the model: the one check of lengths against max_len."""

from cosformer.experiment import ModelConfig
from cosformer.models.config import CosformerConfig


def fitted(config: CosformerConfig, model: ModelConfig, longest: int) -> CosformerConfig:
    """``config`` with room for rows of ``longest`` tokens (and a CLS vector), unless ``model`` sets max_len; then it is checked."""
    needed = longest + int(config.cls_token)
    if model.max_len is None and not {"max_len", "max_position_embeddings"} & model.fields.keys():
        config.max_position_embeddings = needed
    if needed > config.max_position_embeddings:
        cls = " with the CLS vector" if config.cls_token else ""
        raise ValueError(
            f"rows of {needed} tokens{cls} exceed max_len={config.max_position_embeddings}; set model.max_len to"
            f" {needed} or more, or data.length (for documents, the set's option max_length) to less"
        )
    return config
