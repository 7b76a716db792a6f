"""What the column "attention" of a run may say besides the name of an attention: positions and additions with it."""

from typing import Any

ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}
# rotary positions, or none, in the place of the recipe's own
_ROTARY: dict[str, Any] = {"fields": {"position_embedding_type": "none", "rotary": ROTARY}}
_NONE: dict[str, Any] = {"fields": {"position_embedding_type": "none"}}
_GATED: dict[str, Any] = {"short_convolution": 4, "output_gate": True}
_WINDOW: dict[str, Any] = {"attention_options": {"local.window": 32}}
# name -> the fields of the recipe's model that it changes; dictionaries are added to the recipe's
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax-rotary": {"attention": "softmax", **_ROTARY},
    "softmax-gated": {"attention": "softmax", **_GATED},
    "softmax-rotary-gated": {"attention": "softmax", **_ROTARY, **_GATED},
    "multiscale-nopos": {"attention": "multiscale", **_NONE},
    "multiscale-nopos-cosine": {"attention": "multiscale", "attention_options": {"cosine": True}, **_NONE},
    "multiscale-nopos-gated": {"attention": "multiscale", **_NONE, **_GATED},
    # several attentions by turns, layer by layer
    "local-cosformer": {"attention": "local,cosformer", **_WINDOW},
    "local-multiscale": {"attention": "local,multiscale", **_WINDOW, **_NONE},
    "hybrid-1-of-3": {"attention": "multiscale,multiscale,softmax", **_NONE},
    "hybrid-1-of-2": {"attention": "multiscale,softmax"},
}


def model_changes(name: str) -> dict[str, Any]:
    """The fields of ModelConfig of a variant, or of the attention of that name."""
    return VARIANTS.get(name, {"attention": name})


def attentions_of(name: str) -> list[str]:
    """The attentions of its layers."""
    return model_changes(name)["attention"].split(",")


_WORDS = {
    "cosformer": "cosFormer",
    "relu": "ReLU without the cosine",
    "leaky_relu": "leaky ReLU",
    "linear": "elu + 1",
    "multiscale": "decays (`multiscale`)",
    "rotary": "with rotary positions",
    "nopos": "without positions",
    "gated": "with convolution and gate",
    "cosine": "with the cosine",
    "local-cosformer": "a softmax window and cosFormer by turns",
    "local-multiscale": "a softmax window and decays by turns",
    "hybrid-1-of-3": "decays with one layer of softmax in three",
    "hybrid-1-of-2": "decays with one layer of softmax in two",
}


def in_words(name: str) -> str:
    """An attention or a variant for people."""
    if name in _WORDS:
        return _WORDS[name]
    attention, *additions = name.split("-")
    said = ", ".join(_WORDS[word] for word in additions)
    return f"{_WORDS.get(attention, attention)} {said}".strip()
