"""The architectures of the paper's experiments, as configs: the hosts in which it swaps the attention."""

from collections.abc import Callable
from typing import Any

from cosformer.models.config import CosformerConfig


def roberta_base(**changes: Any) -> CosformerConfig:
    """RoBERTa-base: 12 layers, hidden size 768, 12 heads, post-norm; RoBERTa with ``attention="softmax"``."""
    values = {
        "vocab_size": 50_265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "position_offset": 2,
        "type_vocab_size": 1,
        "norm": "post",
        "final_norm": False,
        "embedding_norm": True,
        "hidden_act": "gelu",
        "classifier_dropout": 0.1,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return CosformerConfig(**values | changes)


def adaptive_lm(**changes: Any) -> CosformerConfig:
    """The WikiText-103 language model with adaptive softmax: 16 layers, hidden size 1024, 8 heads, pre-norm."""
    values = {
        "vocab_size": 267_744,
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "intermediate_size": 4096,
        "max_position_embeddings": 512,
        "is_decoder": True,
        "norm": "pre",
        "final_norm": False,
        "hidden_act": "relu",
        "position_embedding_type": "sinusoidal",
        "scale_embedding": True,
        "hidden_dropout_prob": 0.3,
        "activation_dropout": 0.1,
        "adaptive_cutoffs": [20_000, 60_000],
        "adaptive_factor": 4,
        "adaptive_dropout": 0.2,
        "initializer": "xavier",
    }
    return CosformerConfig(**values | changes)


def _lra(length: int, vocab: int, sizes: tuple[int, int, int, int, int], **changes: Any) -> CosformerConfig:
    """``sizes``: layers, width, width of queries and keys, feed-forward, heads. ``length`` excludes a CLS vector."""
    layers, width, qkv, inner, heads = sizes
    values = {
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "head_dim": qkv // heads,
        "intermediate_size": inner,
        "attention_bias": False,
        "norm": "pre",
        "final_norm": True,
        "hidden_act": "gelu",
        "position_embedding_type": "sinusoidal",
        "absolute_positions": True,
        "cls_token": True,
        "pooling": "first",
        "classifier_sizes": [inner],
        "classifier_act": "relu",
        "hidden_dropout_prob": 0.1,
        "initializer": "xavier",
        "embedding_range": 1.0,
        "layer_norm_eps": 1e-6,
    }
    values |= changes
    values.setdefault("activation_dropout", values["hidden_dropout_prob"])
    values.setdefault("max_position_embeddings", length + int(values["cls_token"]))
    return CosformerConfig(**values)


def lra_listops(**changes: Any) -> CosformerConfig:
    """Long Range Arena, ListOps: nested operations on digits, 2,000 tokens, 10 classes."""
    return _lra(2000, 17, (4, 512, 512, 1024, 8), **{"num_labels": 10, "pad_token_id": 0} | changes)


def lra_text(**changes: Any) -> CosformerConfig:
    """Long Range Arena, byte-level text classification, 4,000 bytes, 2 classes."""
    return _lra(4000, 257, (4, 256, 256, 1024, 4), **{"num_labels": 2, "pad_token_id": 0} | changes)


def lra_retrieval(**changes: Any) -> CosformerConfig:
    """Long Range Arena, document retrieval: two of 4,000 bytes each; no CLS vector, the first byte's is taken."""
    values = {"num_labels": 2, "pad_token_id": 0, "cls_token": False, "pairing": "concat"}
    values |= {"classifier_sizes": [512, 256]}
    return _lra(4000, 257, (4, 128, 128, 512, 4), **values | changes)


def lra_image(**changes: Any) -> CosformerConfig:
    """Long Range Arena, grey CIFAR-10 as 1,024 pixels, 10 classes."""
    values = {"num_labels": 10, "position_embedding_type": "learned", "hidden_dropout_prob": 0.3}
    return _lra(1024, 256, (1, 128, 64, 128, 8), **values | changes)


def lra_pathfinder(**changes: Any) -> CosformerConfig:
    """Long Range Arena, Pathfinder: 1,024 pixels, 2 classes, mean of all positions."""
    values = {"num_labels": 2, "cls_token": False, "pooling": "mean_all", "hidden_dropout_prob": 0.2}
    return _lra(1024, 256, (4, 32, 16, 32, 4), **values | changes)


# name -> function of changed fields that returns the config
PRESETS: dict[str, Callable[..., CosformerConfig]] = {
    "roberta_base": roberta_base,
    "adaptive_lm": adaptive_lm,
    "lra_listops": lra_listops,
    "lra_text": lra_text,
    "lra_retrieval": lra_retrieval,
    "lra_image": lra_image,
    "lra_pathfinder": lra_pathfinder,
}


def preset(name: str, **changes: Any) -> CosformerConfig:
    """The config called ``name`` with some fields changed."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(sorted(PRESETS))}")
    return PRESETS[name](**changes)
