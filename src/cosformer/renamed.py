"""Names that experiments and configs of earlier versions were saved with, and what they are called now."""

from typing import Any

# part of an experiment (`config`: of a config.json) -> earlier name -> today's
RENAMED: dict[str, dict[str, str]] = {
    "model": {
        "layers": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "feed_forward": "intermediate_size",
        "dropout": "hidden_dropout_prob",
    },
    "train": {"piece": "window", "piece_gradients": "window_gradients"},
    "config": {"writing_attention": "decoder_attention", "feed_forward": "feed_forward_type"},
}
TASKS = {"score": "similarity"}  # values of an experiment's `task`


def with_current_names(part: str, values: dict[str, Any]) -> dict[str, Any]:
    """``values`` of a saved ``part`` under today's names; a value saved under both names is an error."""
    renamed = RENAMED.get(part, {})
    for old in values.keys() & renamed.keys():
        if renamed[old] in values:
            raise ValueError(f"{part} has both {old} and its current name, {renamed[old]}; remove {old}")
    current = {renamed.get(name, name): value for name, value in values.items()}
    if part == "model" and isinstance(current.get("fields"), dict):  # which are fields of the config
        current["fields"] = with_current_names("config", current["fields"])
    return current
