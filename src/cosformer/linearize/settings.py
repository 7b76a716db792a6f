"""What a linearization is asked to do, as one value."""

from dataclasses import dataclass

# what stands behind the learned maps; each keeps a state of one size
ATTENTIONS = ("cosformer", "relu", "linear", "performer")
GOALS = ("teacher", "text")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Settings:
    """Everything that changes the result, apart from the model and the text."""

    attention: str = "cosformer"
    keep: str = "0"  # how many layers stay softmax (those with the largest loss), or their numbers as in "0,4"
    features: int | None = None  # channels of a head behind the maps; None: twice those before
    window: int = 0  # keys before each query that stay softmax in every linear layer; 0: none
    max_len: int | None = None  # the longest sequence; None: the model's own
    length: int = 512  # tokens in a row of training text
    batch: int = 1  # rows in an update
    transfer_tokens: int = 200_000
    transfer_steps: int = 3  # steps on each batch: the teacher's pass costs more than they do
    transfer_rate: float = 0.01
    repair_tokens: int = 100_000
    repair_rate: float = 1e-3
    rank: int = 16  # of LoRA
    against: str = "teacher"  # repair: "teacher" (its logits, or hidden states where it has none) or "text"
    held_out: int = 8  # rows of the text kept back to measure on
    dtype: str = "float32"  # of the matrix products
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("attention", ATTENTIONS), ("against", GOALS), ("dtype", DTYPES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}; known: {', '.join(known)}")
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
