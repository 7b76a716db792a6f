"""What small recipes share: an architecture in a small size, and a short training."""

from typing import Any

from cosformer.experiment import ModelConfig, Option, TrainConfig


def small_model(
    preset: str, layers: int, width: int, heads: int, inner: int, fields: dict[str, Option], dropout: float = 0.0
) -> ModelConfig:
    """``preset`` in these sizes (``inner``: of the feed-forward blocks), with other ``fields`` of the config."""
    sizes = {"num_hidden_layers": layers, "hidden_size": width}
    sizes |= {"num_attention_heads": heads, "intermediate_size": inner}
    return ModelConfig(preset, hidden_dropout_prob=dropout, fields=fields, **sizes)  # pyright: ignore[reportArgumentType]


def short_training(steps: int, batch: int, lr: float, *, every: int, **others: Any) -> TrainConfig:
    """Warm-up over a tenth of the updates, linear decay, clipping; an evaluation and a checkpoint ``every`` so many."""
    rhythm: dict[str, Any] = {"eval_every": every, "save_every": every, "log_every": 10, "warmup": steps // 10}
    return TrainConfig(steps, batch, lr, clip=1.0, **rhythm | others)
