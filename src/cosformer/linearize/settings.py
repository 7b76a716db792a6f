"""What a linearization is asked to do, as one value."""

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin


# `cosformer linearize --help` and the reference pages show the docstring below each field
@dataclass(frozen=True)
class Settings:
    """Everything that changes the result, apart from the model and the text."""

    attention: Literal["cosformer", "relu", "linear", "performer"] = "cosformer"
    """attention applied to the learned features"""
    keep: str = "0"
    """layers to keep softmax: a number (those with the largest loss) or their indices, e.g. 0,4"""
    features: int | None = None
    """features per head (None: twice its dimension)"""
    window: int = 0
    """keys nearest to a query that linear layers attend to with softmax"""
    max_len: int | None = None
    """longest input, the paper's M (None: unchanged)"""
    length: int = 512
    """tokens per row of training text"""
    batch: int = 1
    """rows per update"""
    transfer_tokens: int = 200_000
    """tokens for training the maps"""
    transfer_steps: int = 3
    """updates of the maps per batch"""
    transfer_rate: float = 0.01
    """learning rate of the maps"""
    repair_tokens: int = 100_000
    """tokens for LoRA training"""
    repair_rate: float = 1e-3
    """learning rate of LoRA training"""
    rank: int = 16
    """rank of LoRA"""
    against: Literal["teacher", "text"] = "teacher"
    """LoRA training target: the teacher's logits (or hidden states), or the text"""
    held_out: int = 8
    """rows held out for evaluation"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the matrix products"""
    seed: int = 0
    """seed of the row order and of LoRA"""

    def __post_init__(self) -> None:
        for field in (f for f in fields(self) if get_origin(f.type) is Literal):
            value, known = getattr(self, field.name), get_args(field.type)
            if value not in known:
                raise ValueError(f"{field.name}={value!r}; known: {', '.join(known)}")
        limits = {"length": 2, "batch": 1, "rank": 1, "transfer_steps": 1, "held_out": 1, "window": 0}
        limits |= dict.fromkeys(("transfer_tokens", "repair_tokens", "transfer_rate", "repair_rate"), 0)
        for name, least in limits.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}; it must be at least {least}")


def kept_layers(keep: str, layers: list[str], losses: list[float]) -> list[str]:
    """The layers that ``keep`` means: by number, or that many with the largest of ``losses``."""
    try:
        numbers = [int(word) for word in keep.split(",")]
    except ValueError:
        raise ValueError(f"keep={keep!r}; give how many layers stay softmax, or their numbers as in 0,4") from None
    if "," not in keep:
        if not 0 <= numbers[0] <= len(layers):
            raise ValueError(f"keep={keep}: the model has {len(layers)} attention layers")
        order = sorted(range(len(layers)), key=lambda i: -losses[i])
        numbers = order[: numbers[0]]
    wrong = [n for n in numbers if not 0 <= n < len(layers)]
    if wrong:
        raise ValueError(f"keep={keep}: layer {wrong[0]} is none of 0 to {len(layers) - 1}")
    return [layers[n] for n in sorted(set(numbers))]
