"""The model a run starts from: fresh weights, another run's, or a Hugging Face checkpoint's."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel

import cosformer.hf  # noqa: F401  (Auto classes know our models only after this)
from cosformer.experiment import EXPERIMENT_FILE, Experiment, ModelConfig
from cosformer.models.config import CosformerConfig
from cosformer.models.roberta import config_from_roberta, from_roberta
from cosformer.tasks.base import ARCHITECTURE, Task
from cosformer.train import checkpoints

# the data decides these for a fresh model; a body that has learned them keeps its own
_LEARNED = ("vocab_size", "max_position_embeddings", "position_offset")


def start_model(task: Task, experiment: Experiment) -> PreTrainedModel:
    """The model with its first weights, drawn from ``train.seed`` where they are new."""
    torch.manual_seed(experiment.train.seed)
    if experiment.start is None:
        return task.head(task.config(experiment.model))
    source = resolve(experiment.start)
    saved = AutoConfig.from_pretrained(source)
    if saved.model_type == CosformerConfig.model_type:
        config = _fitted(saved, task, experiment.model, source)
        return task.head.from_pretrained(source, config=config, dtype=torch.float32)
    if saved.model_type != "roberta":
        raise ValueError(
            f"start={experiment.start!r} holds a model of type {saved.model_type!r}; fine-tuning starts from a run of this"
            " package, a cosformer model, or a RoBERTa checkpoint. Other encoders: `cosformer convert` them first and train"
            " them with transformers"
        )
    ours = config_from_roberta(saved, attention=experiment.model.attention)
    model = task.head(_fitted(ours, task, experiment.model, source))
    body = from_roberta(AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32).state_dict())
    wanted = {
        key: value for key, value in body.items() if key in model.state_dict() and not key.startswith("classifier")
    }
    missing = [key for key in model.state_dict() if key.startswith("model.") and key not in wanted]
    if missing:
        raise ValueError(f"{source} has no weights for {', '.join(missing[:4])}")
    model.load_state_dict(wanted, strict=False)
    return model


def resolve(start: str) -> str:
    """A run's folder gives its best weights; anything else is for transformers to find."""
    folder = Path(start)
    if (folder / EXPERIMENT_FILE).is_file():
        best = folder / "best"
        if not best.is_dir():
            raise FileNotFoundError(f"the run {start} has no best weights yet; let it reach its first evaluation")
        checkpoints.refuse_damaged(best)
        return str(best)
    return start


def _fitted(saved: Any, task: Task, model: ModelConfig, source: str) -> CosformerConfig:
    """The body's own config, with the task's head and what the experiment may still change."""
    needed = task.model_fields()
    for name, why in (("vocab_size", "tokens"), ("max_position_embeddings", "positions")):
        have, need = getattr(saved, name), needed.get(name)
        if need is not None and need > have:
            way_out = "use the tokenizer it was trained with" if why == "tokens" else "use shorter rows (data.length)"
            raise ValueError(f"the model in {source} knows {have:,} {why} and the data has {need:,}; {way_out}")
    for field, ours in ARCHITECTURE.items():
        asked = getattr(model, ours)
        if asked is not None and asked != getattr(saved, field):
            raise ValueError(
                f"model.{ours}={asked}, but the weights in {source} have {field}={getattr(saved, field)}; leave it out"
            )
    turns = model.attention.split(",")
    if [turns[i % len(turns)] for i in range(saved.num_hidden_layers)] != saved.layer_attentions:
        had = ",".join(saved.layer_attentions) if isinstance(saved.attention, list) else saved.attention
        raise ValueError(
            f"model.attention={model.attention!r}, but the weights in {source} were trained with {had!r};"
            f" say --model.attention {had}"
        )
    changes: dict[str, Any] = {key: value for key, value in needed.items() if key not in _LEARNED}
    if model.hidden_dropout_prob is not None:
        changes["hidden_dropout_prob"] = model.hidden_dropout_prob
    changes |= model.fields
    values = {
        key: value for key, value in saved.to_dict().items() if key not in ("id2label", "label2id", "architectures")
    }
    return CosformerConfig(**values | changes)
