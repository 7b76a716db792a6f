"""RoBERTa's weights under our names."""

import re

from torch import Tensor

from cosformer.models.config import CosformerConfig
from cosformer.models.presets import roberta_base

# their name -> ours
_NAMES = {
    r"roberta\.embeddings\.word_embeddings\.(.*)": r"model.embeddings.tokens.\1",
    r"roberta\.embeddings\.position_embeddings\.(.*)": r"model.embeddings.positions.\1",
    r"roberta\.embeddings\.token_type_embeddings\.(.*)": r"model.embeddings.types.\1",
    r"roberta\.embeddings\.LayerNorm\.(.*)": r"model.embeddings.norm.\1",
    r"roberta\.encoder\.layer\.(\d+)\.attention\.self\.(query|key|value)\.(.*)": r"model.layers.\1.attention.\2.\3",
    r"roberta\.encoder\.layer\.(\d+)\.attention\.output\.dense\.(.*)": r"model.layers.\1.attention.output.\2",
    r"roberta\.encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.(.*)": r"model.layers.\1.attention_norm.\2",
    r"roberta\.encoder\.layer\.(\d+)\.intermediate\.dense\.(.*)": r"model.layers.\1.feed_forward.widen.\2",
    r"roberta\.encoder\.layer\.(\d+)\.output\.dense\.(.*)": r"model.layers.\1.feed_forward.narrow.\2",
    r"roberta\.encoder\.layer\.(\d+)\.output\.LayerNorm\.(.*)": r"model.layers.\1.feed_forward_norm.\2",
    r"lm_head\.dense\.(.*)": r"lm_head.dense.\1",
    r"lm_head\.layer_norm\.(.*)": r"lm_head.norm.\1",
    r"lm_head\.decoder\.(.*)": r"lm_head.words.\1",
    r"classifier\.dense\.(.*)": r"classifier.hidden.0.\1",
    r"classifier\.out_proj\.(.*)": r"classifier.scores.\1",
}
_LEFT_OUT = (r"lm_head\.bias", r".*position_ids", r".*token_type_ids")  # the first is lm_head.decoder.bias once more


def from_roberta(state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
    """A RoBERTa state dict (masked LM or classification) with our names; unknown keys raise an error."""
    renamed: dict[str, Tensor] = {}
    for key, tensor in state_dict.items():
        if any(re.fullmatch(pattern, key) for pattern in _LEFT_OUT):
            continue
        for pattern, ours in _NAMES.items():
            if re.fullmatch(pattern, key):
                renamed[re.sub(pattern, ours, key)] = tensor
                break
        else:
            raise ValueError(f"{key!r} is not a name in a RoBERTa state dict")
    return renamed


def config_from_roberta(config: object, **changes: object) -> CosformerConfig:
    """Our config with the sizes of a ``RobertaConfig``."""
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
    same += ("type_vocab_size", "layer_norm_eps", "hidden_dropout_prob", "initializer_range", "pad_token_id")
    values = {name: getattr(config, name) for name in same}
    offset = config.pad_token_id + 1  # pyright: ignore[reportAttributeAccessIssue]
    rows = config.max_position_embeddings  # pyright: ignore[reportAttributeAccessIssue]
    values |= {"position_offset": offset, "max_position_embeddings": rows - offset}
    return roberta_base(**values | changes)
