"""The model a run starts from: fresh weights, another run's, or a Hugging Face checkpoint's."""

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

import cosformer.hf  # noqa: F401  (Auto classes know our models only after this)
from cosformer.experiment import EXPERIMENT_FILE, Experiment, ModelConfig
from cosformer.hf.convert import CONVERTIBLE, read_config, with_attention
from cosformer.models.classification import CosformerForPairClassification
from cosformer.models.config import CosformerConfig
from cosformer.models.roberta import config_from_roberta, from_roberta
from cosformer.tasks.base import ARCHITECTURE, Task
from cosformer.train import checkpoints
from cosformer.train.positions import extend_positions, first_position, repeated

# the data decides these for a fresh model; a body that has learned them keeps its own
_LEARNED = ("vocab_size", "max_position_embeddings", "position_offset")


def start_model(task: Task, experiment: Experiment) -> PreTrainedModel:
    """The model with its first weights, drawn from ``train.seed`` where they are new."""
    torch.manual_seed(experiment.train.seed)
    if experiment.start is None:
        return task.head(task.config(experiment.model))
    source = resolve(experiment.start)
    saved = read_config(source)
    if saved.model_type == CosformerConfig.model_type:
        config = _fitted(saved, task, experiment.model, source)
        if config.max_position_embeddings == saved.max_position_embeddings:
            return task.head.from_pretrained(source, config=config, dtype=torch.float32)
        before = copy.deepcopy(config)
        before.max_position_embeddings = saved.max_position_embeddings
        trained, model = task.head.from_pretrained(source, config=before, dtype=torch.float32), task.head(config)
        model.load_state_dict(_with_positions(trained.state_dict(), config))
        return model
    if saved.model_type != "roberta" or saved.architectures != ["RobertaForMaskedLM"]:
        return _stock_encoder(task, experiment, source, saved)
    ours = config_from_roberta(saved, attention=experiment.model.attention)
    ours = _fitted(ours, task, experiment.model, source)
    model = task.head(ours)
    body = from_roberta(AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32).state_dict())
    wanted = {
        key: value for key, value in body.items() if key in model.state_dict() and not key.startswith("classifier")
    }
    missing = [key for key in model.state_dict() if key.startswith("model.") and key not in wanted]
    if missing:
        raise ValueError(f"{source} has no weights for {', '.join(missing[:4])}")
    model.load_state_dict(_with_positions(wanted, ours), strict=False)
    return model


_HEADS = {
    "CosformerForSequenceClassification": AutoModelForSequenceClassification,
    "CosformerForTokenClassification": AutoModelForTokenClassification,
    "CosformerForMaskedLM": AutoModelForMaskedLM,
}


def _stock_encoder(task: Task, experiment: Experiment, source: str, saved: Any) -> PreTrainedModel:
    """An encoder of transformers with a head for the task, its attention replaced where the experiment names another
    one, and its positions extended where rows are longer. Numbers and pairs have no such head that fits, and get
    ours."""
    ours = task.name == "regress" or task.head is CosformerForPairClassification
    head, fields = AutoModel if ours else _HEADS.get(task.head.__name__), task.model_fields()
    if head is None or saved.model_type.removeprefix("cosformer_") not in CONVERTIBLE:
        raise ValueError(
            f"start={experiment.start!r} holds a model of type {saved.model_type!r}, which task {task.name!r} cannot "
            "start from; classify, multilabel, regress, match, similarity, tag and mlm start from encoders of the "
            f"types {', '.join(CONVERTIBLE[:4])}, the others from a run or a cosformer model"
        )
    if fields["vocab_size"] > saved.vocab_size:
        raise ValueError(
            f"the vocabulary of {source} has {saved.vocab_size:,} tokens and the data {fields['vocab_size']:,}; use "
            "its tokenizer"
        )
    wanted = {name: fields[name] for name in ("num_labels", "id2label", "label2id", "problem_type") if name in fields}
    model = head.from_pretrained(source, dtype=torch.float32, **({} if ours else wanted))
    model = _with_asked_attention(model, experiment, task.length, source)
    return _under_our_head(model, task, fields, experiment.model) if ours else model


def _with_asked_attention(model: Any, experiment: Experiment, length: int, source: str) -> Any:
    """``model`` with room for ``length`` tokens and the attention that the experiment names."""
    had, asked = getattr(model.config, "attention", "softmax"), experiment.model.attention
    longer = length > model.config.max_position_embeddings - first_position(model.config)
    if longer:
        extend_positions(model, length)
    most = model.config.max_position_embeddings
    if asked == had:
        if had == "learned" and longer:  # the mechanisms are built anew for the longer M, with the maps they have
            return with_attention(model, attention=had, learned=model.config.learned | {"max_len": most})
        if had == "cosformer":
            model.config.cosformer_max_len = most
        return model
    if asked not in ("cosformer", "softmax") or had == "learned":
        raise ValueError(
            f"model.attention={asked!r}: the encoder in {source} runs {had}; it can keep it"
            + ("" if had == "learned" else ", or run cosformer or softmax")
        )
    return with_attention(model, attention=asked, cosformer_max_len=most)


def _under_our_head(body: Any, task: Task, fields: dict[str, Any], asked: ModelConfig) -> PreTrainedModel:
    encoder = body.config
    attention = getattr(encoder, "attention", "softmax")
    changes: dict[str, Any] = fields | {
        "vocab_size": encoder.vocab_size,
        "hidden_size": encoder.hidden_size,
        "num_hidden_layers": encoder.num_hidden_layers,
        "num_attention_heads": encoder.num_attention_heads,
        "max_position_embeddings": encoder.max_position_embeddings - first_position(encoder),
        "attention": encoder.learned["attention"] if attention == "learned" else attention,
        "encoder": encoder.to_dict(),
        "pooling": "mean",
    }
    changes |= asked.fields
    config = CosformerConfig(**changes)
    model: Any = task.head(config)
    body.pooler = None
    model.model = body
    return model


def _with_positions(state: dict[str, Any], config: CosformerConfig) -> dict[str, Any]:
    """``state`` with its learned positions extended to those of ``config``."""
    name, length = "model.embeddings.positions.weight", config.max_position_embeddings
    if name in state and len(state[name]) < length + config.position_offset:
        state = state | {name: repeated(state[name], length, config.position_offset)}
    return state


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
    have, need = saved.vocab_size, needed["vocab_size"]
    if need > have:
        raise ValueError(
            f"the vocabulary of {source} has {have:,} tokens and the data {need:,}; use the tokenizer it was trained "
            "with"
        )
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
    if saved.encoder is not None and task.length > saved.max_position_embeddings:
        raise ValueError(
            f"rows of {task.length:,} tokens, and the encoder in {source} has {saved.max_position_embeddings:,} "
            "positions; set data.length to that, or start from the encoder itself"
        )
    changes: dict[str, Any] = {key: value for key, value in needed.items() if key not in _LEARNED}
    if model.hidden_dropout_prob is not None:
        changes["hidden_dropout_prob"] = model.hidden_dropout_prob
    changes |= model.fields
    # a longer M spreads the cosine over more tokens, and learned positions are repeated: training gets used to both
    changes["max_position_embeddings"] = max(saved.max_position_embeddings, task.length + int(saved.cls_token))
    values = {
        key: value for key, value in saved.to_dict().items() if key not in ("id2label", "label2id", "architectures")
    }
    return CosformerConfig(**values | changes)
