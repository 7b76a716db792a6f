"""Stock pretrained models with their attention replaced and their weights kept, under a separate model type.

``cosformer_bert`` is BERT with cosFormer attention. The separate type, and ``attn_implementation`` in its config.json,
prevent such a model from being loaded as the stock one and run with softmax by mistake.
"""

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, DynamicCache, EncoderDecoderCache, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cosformer._version import __version__
from cosformer.hf.attention import MULTISCALE, NAME
from cosformer.hf.linearized import LEARNED, MECHANISM, attach_mechanisms
from cosformer.models.auto_map import publish, write_auto_map
from cosformer.models.card import model_card
from cosformer.models.config import CosformerConfig
from cosformer.models.state_cache import StateCache

CONVERTIBLE = ("bert", "roberta", "distilbert", "electra", "gpt2", "opt", "llama", "qwen2", "qwen3", "bart")
ROTARY = ("llama", "qwen2", "qwen3")
# what a converted model can run -> attn_implementation; None: one of transformers' own
IMPLEMENTATIONS = {NAME: NAME, "softmax": None, MULTISCALE: MULTISCALE, "learned": LEARNED}
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
# what sentence-transformers puts beside a model; modules.json names further folders
_SENTENCE_FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")


class ConvertedConfig:
    """Mixin for a stock config: the attention that the model runs, saved so that stock classes recognize it."""

    attention: str
    learned: dict | None  # of attention="learned": the fields of a LearnedAttention

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if self.attention not in IMPLEMENTATIONS:
            known = ", ".join(IMPLEMENTATIONS)
            raise ValueError(f"attention={self.attention!r}; a converted model runs one of {known}")
        if (self.attention == "learned") != (self.learned is not None):
            raise ValueError(
                "attention='learned' and the field `learned` go together; `cosformer linearize` writes both"
            )
        register_models(self.model_type.removeprefix(PREFIX))  # pyright: ignore[reportAttributeAccessIssue]

    def to_json_string(self, use_diff: bool = True) -> str:
        values = json.loads(super().to_json_string(use_diff))  # pyright: ignore[reportAttributeAccessIssue]
        if IMPLEMENTATIONS[self.attention] is not None:
            # a stock class takes this for what to run: it fails where the name is not registered, and is right where it
            # is
            values["attn_implementation"] = IMPLEMENTATIONS[self.attention]
        return json.dumps(values, indent=2, sort_keys=True) + "\n"

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As transformers' own, with a file that leads ``trust_remote_code=True`` to this package."""
        stock = CONFIG_MAPPING[self.model_type.removeprefix(PREFIX)]  # pyright: ignore[reportAttributeAccessIssue]
        models = {auto: f"Cosformer{made.__name__}" for auto, made in _models_of(stock).items()}
        write_auto_map(self, save_directory, __name__, type(self).__name__, models)
        super().save_pretrained(save_directory, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing to do: a saved config always says where its class is."""


class ConvertedModel:
    """Mixed into a stock model: runs the attention that its config names, whatever the default is."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        asked, own = config._attn_implementation, IMPLEMENTATIONS[config.attention]
        ours = asked is not None and asked in IMPLEMENTATIONS.values()
        if asked != own and (ours or (own is not None and asked is not None)):
            raise ValueError(
                f"attn_implementation={asked!r}: this model was converted to attention={config.attention!r}"
            )
        if own is not None:
            config._attn_implementation = own
        super().__init__(config, *args, **kwargs)  # pyright: ignore[reportCallIssue]
        if config.attention == "learned":
            attach_mechanisms(self)  # pyright: ignore[reportArgumentType]

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict, *args: Any) -> None:
        """The cache of one size, where nobody asks for another."""
        keeps_states = IMPLEMENTATIONS[self.config.attention] is not None  # pyright: ignore[reportAttributeAccessIssue]
        wanted = keeps_states and generation_config.use_cache is not False
        if wanted and generation_config.cache_implementation is None and model_kwargs.get("past_key_values") is None:
            cache: Any = StateCache()
            if generation_config.is_assistant:
                cache.activate_past_recording()
            if self.config.is_encoder_decoder:  # pyright: ignore[reportAttributeAccessIssue]
                cache = EncoderDecoderCache(cache, DynamicCache())
            model_kwargs["past_key_values"] = cache
            return
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)  # pyright: ignore

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing to do: a saved model always says where its classes are."""

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("a converted model keeps its attention; convert the original once more for another one")


@cache
def converted_config(model_type: str) -> type:
    """The config class of ``cosformer_<model_type>``."""
    base = CONFIG_MAPPING[model_type]
    body: dict[str, Any] = {"model_type": PREFIX + model_type, "attention": NAME, "learned": None}
    body["__annotations__"] = {"attention": str, "learned": dict | None}
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
    for auto, stock in _models_of(CONFIG_MAPPING[model_type]).items():
        made = converted_model(stock, model_type)
        getattr(transformers, auto).register(converted_config(model_type), made, exist_ok=True)
        publish(made)


def _models_of(config_class: type) -> dict[str, type]:
    """Auto class -> the model that it builds from such a config."""
    found = {}
    for auto in _AUTO:
        made = getattr(transformers, auto)._model_mapping.get(config_class, None)
        if made is not None:
            found[auto] = made[0] if isinstance(made, tuple | list) else made
    return found


def __getattr__(name: str) -> Any:
    """Creates classes of converted models on first access, also for ``trust_remote_code=True``."""
    if name.startswith("Cosformer"):
        for model_type in CONVERTIBLE:
            if name.startswith(f"Cosformer{CONFIG_MAPPING[model_type].__name__.removesuffix('Config')}"):
                register_models(model_type)
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def read_config(source: str) -> PreTrainedConfig:
    """The config of the model in ``source``, a folder or a hub name."""
    try:
        return AutoConfig.from_pretrained(source)
    except OSError as error:
        raise FileNotFoundError(f"no model in {source!r}: {error}") from error
    except Exception as error:  # whatever transformers makes of a config that is none
        raise ValueError(f"the config.json of {source} cannot be read ({type(error).__name__}: {error})") from error


def convert(source: str, out: Path, *, attention: str = NAME, max_len: int | None = None) -> list[str]:
    """Write the model in ``source`` with another attention to ``out``; returns notes for the user, one per line."""
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty; choose another place for the converted model")
    config = read_config(source)
    make = _convert_own if config.model_type == CosformerConfig.model_type else _convert_stock
    model, notes = make(source, config, attention, max_len)
    name = Path(source).name if Path(source).exists() else source
    lines = "\n".join(f"* {note}" for note in notes)
    body = f"Converted with cosformer {__version__} (`cosformer convert`):\n\n{lines}"
    return notes + write_checkpoint(model, source, out, f"{name}, with its attention replaced", body, "converted")


def write_checkpoint(
    model: PreTrainedModel, source: str, out: Path, title: str, body: str, tag: str, **card: str
) -> list[str]:
    """The model with a card, and beside it what else lies in ``source``; returns a line on each."""
    out.mkdir(parents=True, exist_ok=True)
    # before the model is saved: a README that is there stays
    model_card(title, body, _auto_name(model), tag, **card).save(out / "README.md")
    model.save_pretrained(out)
    return [_copy_tokenizer(source, out), *_copy_sentence_files(Path(source), out)]


def _convert_stock(source: str, config: Any, attention: str, max_len: int | None) -> tuple[PreTrainedModel, list[str]]:
    if attention == "learned" or getattr(config, "attention", None) == "learned":
        raise ValueError(
            "learned maps are made by `cosformer linearize`, from the original model; convert neither makes nor drops "
            "them"
        )
    original = load_stock(source, config)
    had, base = config.model_type, config.model_type.removeprefix(PREFIX)
    changes = {} if max_len is None else {"cosformer_max_len": max_len}
    model = with_attention(original, attention=attention, **changes)
    new = model.config
    notes = [
        f"attention: {'as it was' if had != base else 'softmax'} -> {attention}; every weight is kept",
        f"model type: {had} -> {new.model_type}; it loads where the package cosformer is imported, and nowhere else",
    ]
    if attention in (NAME, MULTISCALE):
        notes.append("the weights were trained for another attention: train the model before you use it")
        if base in ROTARY:
            notes.append(
                "this model rotates queries and keys before the attention takes their ReLU: that is not the paper's "
                "model"
            )
    return model, notes


def load_stock(source: str, config: Any) -> PreTrainedModel:
    """The model in ``source``, of a family that can be converted."""
    if config.model_type.removeprefix(PREFIX) not in CONVERTIBLE:
        raise ValueError(
            f"model type {config.model_type!r} cannot be converted; known: {', '.join(CONVERTIBLE)}, cosformer"
        )
    return class_of(config).from_pretrained(source, dtype="auto")


def with_attention(original: PreTrainedModel, **changes: Any) -> PreTrainedModel:
    """A converted model with the weights of ``original``; ``changes``: ``attention`` and other fields of its config."""
    base = original.config.model_type.removeprefix(PREFIX)
    stock = next(c for c in type(original).__mro__ if c.__module__ != __name__)  # of a converted one, what it came from
    values = original.config.to_dict() | changes
    values.pop("model_type")
    new = converted_config(base)(**values)
    new.dtype = original.dtype
    model = converted_model(stock, base)(new).to(original.dtype)
    left = model.load_state_dict(original.state_dict(), strict=False)
    assert not left.unexpected_keys and all(f".{MECHANISM}." in name for name in left.missing_keys), left
    if hasattr(original, "generation_config"):
        model.generation_config = original.generation_config
    with torch.no_grad():  # refuses now, rather than in the user's hands, what the attention cannot honour
        model.eval()(input_ids=torch.zeros(1, 4, dtype=torch.long))
    return model


def _convert_own(source: str, config: Any, attention: str, max_len: int | None) -> tuple[PreTrainedModel, list[str]]:
    if max_len is not None:
        raise ValueError("max_len of a cosformer model is part of its weights; it cannot be changed by conversion")
    original: Any = class_of(config).from_pretrained(source, dtype="auto")
    values = config.to_dict() | {"attention": attention, "attention_options": None}
    model: Any = type(original)(CosformerConfig(**values)).to(original.dtype)
    result = model.load_state_dict(original.state_dict(), strict=False)
    notes = [f"attention: {config.attention} -> {attention}", "train the model before you use it"]
    for what, keys in (("new, from scratch", result.missing_keys), ("dropped", result.unexpected_keys)):
        if keys:
            notes.append(f"parameters {what}: {', '.join(keys)}")
    return model, notes


def class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class of a saved model, ours, converted or transformers' own."""
    import cosformer.hf  # noqa: F401  (our own classes are found through the Auto classes)

    name = (config.architectures or [None])[0]
    for made in _models_of(type(config)).values():
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


def _copy_sentence_files(source: Path, out: Path) -> list[str]:
    """What sentence-transformers needs to load the result: its modules, among them pooling and normalisation."""
    if not (source / "modules.json").is_file():
        return []
    folders = [module["path"] for module in json.loads((source / "modules.json").read_text(encoding="utf-8"))]
    for name in _SENTENCE_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, out / name)
    for name in folders:
        if name and (source / name).is_dir():
            shutil.copytree(source / name, out / name, dirs_exist_ok=True)
    return ["sentence-transformers' files are the original's"]


def _auto_name(model: PreTrainedModel) -> str:
    models = _models_of(type(model.config))
    return next((auto for auto, made in models.items() if made is type(model)), "AutoModel")
