"""The settings of a linearization."""

from dataclasses import dataclass, fields, replace
from typing import Literal, get_args, get_origin

ATTENTIONS = ("cosformer", "relu", "linear", "performer")
TRANSFER_SHARE = 0.2  # of --hours; repair gets the rest


# `cosformer linearize --help` and the reference pages show the docstring below each field
@dataclass(frozen=True)
class Settings:
    """Everything that changes the result, apart from the model and the text."""

    window: int | None = None
    """last keys under softmax (None: 64; encoder: 0)"""
    sinks: int | None = None
    """first keys under softmax (None: 4)"""
    features: int | None = None
    """features a head; 0: none (None: twice its size)"""
    attention: str | None = None
    """attention without a window (None: cosformer)"""
    keep: str = "0"
    """softmax layers: a number (the costliest) or indices, as in 0,4"""
    max_len: int | None = None
    """longest input, the paper's M (None: unchanged)"""
    length: int | None = None
    """tokens per row (None: 2048; encoder: 512)"""
    batch: int = 1
    """rows per update"""
    hours: float | None = None
    """time to train, not tokens (None: by tokens)"""
    transfer_tokens: int | None = None
    """tokens for the maps (None: 50,000; no window: 200,000)"""
    transfer_steps: int | None = None
    """map updates per batch (None: 6; no window: 3)"""
    transfer_rate: float | None = None
    """learning rate of the maps (None: 0.02; no window: 0.01)"""
    repair_tokens: int | None = None
    """tokens for LoRA (None: 250,000; no window: 100,000)"""
    repair_rate: float = 2e-3
    """learning rate of LoRA training"""
    rank: int = 16
    """rank of LoRA"""
    against: Literal["teacher", "text"] = "teacher"
    """target of LoRA: the teacher's outputs, or the text"""
    held_out: int = 8
    """rows held out for evaluation"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the matrix products"""
    seed: int = 0
    """seed of the row order and of LoRA"""

    def __post_init__(self) -> None:
        known: dict[str, tuple] = {f.name: get_args(f.type) for f in fields(self) if get_origin(f.type) is Literal}
        for name, values in (known | {"attention": (None, *ATTENTIONS)}).items():
            value = getattr(self, name)
            if value not in values:
                raise ValueError(f"{name}={value!r}; known: {', '.join(filter(None, values))}")
        limits = {"length": 2, "batch": 1, "rank": 1, "transfer_steps": 1, "held_out": 1, "window": 0, "sinks": 0}
        limits |= dict.fromkeys(
            ("transfer_tokens", "repair_tokens", "transfer_rate", "repair_rate", "features", "hours"), 0
        )
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value}; it must be at least {least}")
        given = [name for name in ("transfer_tokens", "repair_tokens") if getattr(self, name) is not None]
        if self.hours is not None and given:
            raise ValueError(f"hours={self.hours} and {given[0]}={getattr(self, given[0])}; give one of them")

    def resolved(self, *, causal: bool, max_len: int, head_dim: int) -> "Settings":
        """A copy with every None replaced by its default for this model; tokens stay None if hours are given."""
        window = (64 if causal else 0) if self.window is None else self.window
        if window and not causal:
            raise ValueError(f"window={window}: a window looks back and needs a decoder; leave it out for an encoder")
        if window and self.attention is not None:
            raise ValueError(
                f"attention={self.attention!r}: the far part of a window has softmax features of its own; leave "
                "attention out, or add --window 0"
            )
        if not window and (self.sinks or self.features == 0):
            name = "sinks" if self.sinks else "features"
            raise ValueError(f"{name}={getattr(self, name)} needs a window")
        chosen = {
            "window": window,
            "sinks": 4 if window else 0,
            "features": 2 * head_dim,
            "attention": None if window else "cosformer",
            "length": min(2048 if causal else 512, max_len),
            "transfer_steps": 6 if window else 3,
            "transfer_rate": 0.02 if window else 0.01,
        }
        if self.hours is None:
            chosen |= {
                "transfer_tokens": 50_000 if window else 200_000,
                "repair_tokens": 250_000 if window else 100_000,
            }
        return replace(self, **{name: value for name, value in chosen.items() if getattr(self, name) is None})


def kept_layers(keep: str, layers: list[str], costs: list[float]) -> list[str]:
    """The layers that ``keep`` means: by number, or that many with the largest of ``costs``."""
    try:
        numbers = [int(word) for word in keep.split(",")]
    except ValueError:
        raise ValueError(f"keep={keep!r}; give how many layers stay softmax, or their numbers as in 0,4") from None
    if "," not in keep:
        if not 0 <= numbers[0] <= len(layers):
            raise ValueError(f"keep={keep}: the model has {len(layers)} attention layers")
        order = sorted(range(len(layers)), key=lambda i: -costs[i])
        numbers = order[: numbers[0]]
    wrong = [n for n in numbers if not 0 <= n < len(layers)]
    if wrong:
        raise ValueError(f"keep={keep}: layer {wrong[0]} is none of 0 to {len(layers) - 1}")
    return [layers[n] for n in sorted(set(numbers))]
