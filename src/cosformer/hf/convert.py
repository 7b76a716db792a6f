"""Stock pretrained models with their attention replaced and their weights kept, under a model type of their own.

``cosformer_bert`` is BERT with cosFormer attention. The type of its own, and a sentence where the stock config wants a number,
make sure that nothing loads such a model as the stock one and runs softmax on it by mistake.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cosformer._version import __version__
from cosformer.hf.attention import NAME
from cosformer.models.card import model_card
from cosformer.models.config import CosformerConfig

CONVERTIBLE = ("bert", "roberta", "distilbert", "electra", "gpt2", "opt", "llama", "qwen2", "qwen3", "bart")
ROTARY = ("llama", "qwen2", "qwen3")
ATTENTIONS = (NAME, "softmax")
PREFIX = "cosformer_"
_AUTO = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForSeq2SeqLM",
)
_NOTE = "(a converted model: pip install 'cosformer[hf]', then import cosformer.hf and load it with an Auto class)"


class ConvertedConfig:
    """Mixed into a stock config: which attention the model runs, and a file that no stock config accepts."""

    attention: str

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention={self.attention!r}; a converted model runs one of {', '.join(ATTENTIONS)}")
        register_models(self.model_type.removeprefix(PREFIX))  # pyright: ignore[reportAttributeAccessIssue]

    def to_json_string(self, use_diff: bool = True) -> str:
        values = json.loads(super().to_json_string(use_diff))  # pyright: ignore[reportAttributeAccessIssue]
        values["vocab_size"] = f"{self.vocab_size} {_NOTE}"  # pyright: ignore[reportAttributeAccessIssue]
        return json.dumps(values, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        vocab = config_dict.get("vocab_size")
        if isinstance(vocab, str):
            config_dict = {**config_dict, "vocab_size": int(vocab.split()[0])}
        return super().from_dict(config_dict, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]


class ConvertedModel:
    """Mixed into a stock model: runs the attention that its config names, whatever the default is."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        asked = config._attn_implementation
        if (config.attention == NAME and asked not in (None, NAME)) or (config.attention != NAME and asked == NAME):
            raise ValueError(
                f"attn_implementation={asked!r}: this model was converted to attention={config.attention!r}"
            )
        if config.attention == NAME:
            config._attn_implementation = NAME
        super().__init__(config, *args, **kwargs)  # pyright: ignore[reportCallIssue]

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("a converted model keeps its attention; convert the original once more for another one")


@cache
def converted_config(model_type: str) -> type:
    """The config class of ``cosformer_<model_type>``."""
    base = CONFIG_MAPPING[model_type]
    body = {"model_type": PREFIX + model_type, "attention": NAME, "__annotations__": {"attention": str}}
    return _publish(type(f"Cosformer{base.__name__}", (ConvertedConfig, base), {**body, "__module__": __name__}))


@cache
def converted_model(stock: type, model_type: str) -> type:
    """``stock`` (a model class of transformers) that runs the attention of a converted config."""
    config = converted_config(model_type)
    body = {"config_class": config, "__annotations__": {"config": config}, "__module__": __name__}
    return _publish(type(f"Cosformer{stock.__name__}", (ConvertedModel, stock), body))


def _publish(made: type) -> type:
    globals()[made.__name__] = made  # where pickle looks for it
    return made


def register_configs() -> None:
    """Let ``AutoConfig`` read converted models; their model classes follow when a config is made."""
    for model_type in CONVERTIBLE:
        AutoConfig.register(PREFIX + model_type, converted_config(model_type), exist_ok=True)


@cache
def register_models(model_type: str) -> None:
    """Let the Auto classes build every form of ``cosformer_<model_type>`` that the stock model has."""
    stock_config, config = CONFIG_MAPPING[model_type], converted_config(model_type)
    for name in _AUTO:
        auto = getattr(transformers, name)
        if stock_config in auto._model_mapping:
            stock = auto._model_mapping[stock_config]
            stock = stock[0] if isinstance(stock, tuple | list) else stock
            auto.register(config, converted_model(stock, model_type), exist_ok=True)


def convert(source: str, out: Path, *, attention: str = NAME, max_len: int | None = None) -> list[str]:
    """Write the model in ``source`` with another attention to ``out``; returns what a reader should know, line by line."""
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty; choose another place for the converted model")
    try:
        config = AutoConfig.from_pretrained(source)
    except OSError as error:
        raise FileNotFoundError(f"no model in {source!r}: {error}") from error
    make = _convert_own if config.model_type == CosformerConfig.model_type else _convert_stock
    model, notes = make(source, config, attention, max_len)
    out.mkdir(parents=True, exist_ok=True)
    _write_note(out, source, notes, _auto_name(model))  # before saving: a README that is there stays
    model.save_pretrained(out)
    notes.append(_copy_tokenizer(source, out))
    return notes


def _convert_stock(source: str, config: Any, attention: str, max_len: int | None) -> tuple[PreTrainedModel, list[str]]:
    had = config.model_type
    base = had.removeprefix(PREFIX)
    if base not in CONVERTIBLE:
        raise ValueError(f"model type {had!r} cannot be converted; known: {', '.join(CONVERTIBLE)}, cosformer")
    original: Any = _class_of(config).from_pretrained(source, dtype="auto")
    stock = next(c for c in type(original).__mro__ if c.__module__ != __name__)  # of a converted one, what it came from
    values = config.to_dict() | {"attention": attention}
    values.pop("model_type")
    if max_len is not None:
        values["cosformer_max_len"] = max_len
    new = converted_config(base)(**values)
    new.dtype = original.dtype
    model = converted_model(stock, base)(new).to(original.dtype)
    model.load_state_dict(original.state_dict())
    if hasattr(original, "generation_config"):
        model.generation_config = original.generation_config
    with torch.no_grad():  # refuses now, rather than in the user's hands, what the attention cannot honour
        model.eval()(input_ids=torch.zeros(1, 4, dtype=torch.long))
    notes = [
        f"attention: {'as it was' if had != base else 'softmax'} -> {attention}; every weight is kept",
        f"model type: {had} -> {new.model_type}; it loads where the package cosformer is imported, and nowhere else",
    ]
    if attention == NAME:
        notes.append("the weights were trained for another attention: train the model before you use it")
        if base in ROTARY:
            notes.append(
                "this model rotates queries and keys before the attention takes their ReLU: that is not the paper's model"
            )
    return model, notes


def _convert_own(source: str, config: Any, attention: str, max_len: int | None) -> tuple[PreTrainedModel, list[str]]:
    if max_len is not None:
        raise ValueError("max_len of a cosformer model is part of its weights; it cannot be changed by conversion")
    original: Any = _class_of(config).from_pretrained(source, dtype="auto")
    values = config.to_dict() | {"attention": attention, "attention_options": None}
    model: Any = type(original)(CosformerConfig(**values)).to(original.dtype)
    result = model.load_state_dict(original.state_dict(), strict=False)
    notes = [f"attention: {config.attention} -> {attention}", "train the model before you use it"]
    for what, keys in (("new, from scratch", result.missing_keys), ("dropped", result.unexpected_keys)):
        if keys:
            notes.append(f"parameters {what}: {', '.join(keys)}")
    return model, notes


def _class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    import cosformer.hf  # noqa: F401  (our own classes are found through the Auto classes)

    name = (config.architectures or [None])[0]
    for auto in (getattr(transformers, auto) for auto in _AUTO):
        if type(config) in auto._model_mapping:
            made = auto._model_mapping[type(config)]
            made = made[0] if isinstance(made, tuple | list) else made
            if name in (None, made.__name__):
                return made
    found = getattr(transformers, name or "", None)
    if found is None:
        raise ValueError(f"architecture {name!r} of model type {config.model_type!r} is not known to transformers")
    return found


def _copy_tokenizer(source: str, out: Path) -> str:
    try:
        transformers.AutoTokenizer.from_pretrained(source).save_pretrained(out)
    except (OSError, ValueError, KeyError) as error:
        return f"no tokenizer taken along: {str(error).splitlines()[0]}"
    return "the tokenizer is the original's"


def _auto_name(model: PreTrainedModel) -> str:
    names = [
        name
        for name in _AUTO
        if type(model) is getattr(transformers, name)._model_mapping.get(type(model.config), None)
    ]
    return names[0] if names else "AutoModel"


def _write_note(out: Path, source: str, notes: list[str], auto: str) -> None:
    name = Path(source).name if Path(source).exists() else source
    lines = "\n".join(f"* {note}" for note in notes)
    body = f"Converted with cosformer {__version__} (`cosformer convert`):\n\n{lines}"
    model_card(f"{name}, with its attention replaced", body, auto, "converted").save(out / "README.md")
