"""General recipes, for the user's own data: functions of the data's summary that return an :class:`Experiment`.

They are called once, when a run begins; what they decided is written into experiment.json, and resuming reads it there.
"""

import dataclasses
from collections.abc import Callable

from cosformer.data.summary import Summary
from cosformer.experiment import DataConfig, Experiment, ModelConfig, Option, TrainConfig
from cosformer.recipes.short import short_training, small_model

LONGEST = 4_096  # tokens of a row that are read by default; attention is linear, but a laptop's patience is not
_FORECAST_WINDOW = 512  # steps, those that are forecast among them
_UPDATE_TOKENS = 8_192  # about so many tokens an update
_EVALUATIONS = 10  # over a run

_SUBWORDS = "bpe-lower:8000"  # of texts with labels: from so few, an encoder hardly learns to spell
# an encoder that learns from scratch within a few hundred updates : positions are easy to see
_ENCODER: dict[str, Option] = {"norm": "pre", "final_norm": True, "embedding_norm": False, "hidden_act": "gelu"}
_ENCODER |= {"position_embedding_type": "sinusoidal", "position_offset": 0, "scale_embedding": True}
_ENCODER |= {"embedding_range": 0.03, "initializer": "xavier", "classifier_dropout": 0.1}
_OF_READINGS: dict[str, Option] = {"scale_embedding": False}  # a linear map is no table of small embeddings
_DECODER: dict[str, Option] = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0, "activation_dropout": 0.0}
_DECODER |= {"final_norm": True, "embedding_range": 0.03, "hidden_act": "gelu"}


def lm(summary: Summary, data: DataConfig, start: str | None) -> Experiment:
    """The next token of your own texts, sequences or events."""
    length = data.length or _block(summary.tokens, most=1_024)
    batch = _power_of_two(_UPDATE_TOKENS / length, least=4, most=64)
    passes = 3 if summary.tokens > 10_000_000 else 10
    train = _train(_steps(passes * summary.tokens / length, batch), batch, 1e-3 if start else 3e-3)
    model = _sized("adaptive_lm", summary.tokens, _DECODER, start)
    data = dataclasses.replace(data, length=length, eval_rows=data.eval_rows or 256)
    return Experiment("lm", "lm", data, model, train, start, _note(summary))


def mlm(summary: Summary, data: DataConfig, start: str | None) -> Experiment:
    """Hidden tokens of your own texts: an encoder to start other recipes from."""
    length = data.length or _block(summary.tokens, most=512)
    batch = _power_of_two(_UPDATE_TOKENS / length, least=4, most=64)
    passes = 5 if summary.tokens > 10_000_000 else 20
    train = _train(_steps(passes * summary.tokens / length, batch), batch, 1e-3 if start else 3e-3)
    model = _sized("roberta_base", summary.tokens, _ENCODER, start)
    data = dataclasses.replace(data, length=length, eval_rows=data.eval_rows or 1_000)
    return Experiment("mlm", "mlm", data, model, train, start, _note(summary))


def classify(summary: Summary, data: DataConfig, start: str | None) -> Experiment:
    """The class of a text, a sequence or a series."""
    length = data.length or min(summary.longest, LONGEST)
    data = dataclasses.replace(data, length=length)
    batch = _power_of_two(_UPDATE_TOKENS / min(summary.median, length), least=8, most=64)
    passes = 3 if start else 10
    train = _train(_steps(passes * summary.rows["train"], batch), batch, 3e-4 if start else 1e-3)
    train = dataclasses.replace(train, group_by_length=True, weight_decay=0.01)
    encoder = _ENCODER | {"pooling": "mean"} | (_OF_READINGS if data.name == "series" else {})
    model = _sized("roberta_base", summary.tokens, encoder, start, dropout=0.1)
    task = _TASKS[str(data.options.get("target", "class"))]
    return Experiment("classify", task, data, model, train, start, _note(summary))


_TASKS = {"class": "classify", "classes": "multilabel", "number": "regress", "tags": "tag", "text": "seq2seq"}


def regress(summary: Summary, data: DataConfig, start: str | None) -> Experiment:
    """A number for a text, a sequence or a series."""
    return dataclasses.replace(classify(summary, data, start), recipe="regress")


def match(summary: Summary, data: DataConfig, start: str | None) -> Experiment:
    """A class for two texts, each encoded on its own; a number with --data.options.target number."""
    found = classify(summary, data, start)
    return dataclasses.replace(found, recipe="match", task="similarity" if found.task == "regress" else "match")


def tag(summary: Summary, data: DataConfig, start: str | None) -> Experiment:
    """A tag for each word of a text."""
    found = classify(summary, data, start)
    fields = {key: value for key, value in found.model.fields.items() if key != "pooling"}
    return dataclasses.replace(found, recipe="tag", model=dataclasses.replace(found.model, fields=fields))


def seq2seq(summary: Summary, data: DataConfig, start: str | None) -> Experiment:
    """A text written from another: a translation, a summary."""
    if start is not None:
        raise ValueError("seq2seq trains from scratch: an encoder's weights have no decoder; leave out --start")
    return dataclasses.replace(tag(summary, data, None), recipe="seq2seq")


def forecast(summary: Summary, data: DataConfig, start: str | None) -> Experiment:
    """The next steps of series of readings: arrays, or tables with a reading a row."""
    length = data.length or max(2, min(summary.longest, _FORECAST_WINDOW))
    batch = _power_of_two(_UPDATE_TOKENS / length, least=8, most=64)
    train = _train(_steps(20 * summary.tokens / length, batch), batch, 3e-4 if start else 1e-3)
    model = _sized("adaptive_lm", summary.tokens, _DECODER | _OF_READINGS, start)
    data = dataclasses.replace(data, length=length, eval_rows=data.eval_rows or 1_000)
    return Experiment("forecast", "forecast", data, model, train, start, _note(summary))


# name -> (data set of its files, the options that make it what it is or suit it best, recipe)
GENERAL: dict[str, tuple[str, dict[str, Option], Callable[[Summary, DataConfig, str | None], Experiment]]] = {
    "lm": ("texts", {}, lm),
    "mlm": ("texts", {}, mlm),
    "classify": ("table", {"target": "class", "tokenizer": _SUBWORDS}, classify),
    "regress": ("table", {"target": "number", "tokenizer": _SUBWORDS}, regress),
    "match": ("table", {"target": "class", "pairs": True, "tokenizer": _SUBWORDS}, match),
    "tag": ("table", {"target": "tags"}, tag),
    "forecast": ("series", {"target": "next"}, forecast),
    "seq2seq": ("table", {"target": "text"}, seq2seq),
}


def example(name: str) -> Experiment:
    """The recipe for a set of middling size, to show its options before any data is named."""
    data, options, make = GENERAL[name]
    found = make(
        Summary({"train": 8_000, "valid": 1_000, "test": 1_000}, 4_000_000, 500, 2_000), DataConfig(data, options), None
    )
    return dataclasses.replace(
        found,
        note=f"{(make.__doc__ or '').strip()} Give your files as --data PATH; sizes, updates and the"
        " learning rate then come from the data. Shown are those for 8,000 rows of 500 tokens.",
    )


def _sized(preset: str, tokens: int, fields: dict[str, Option], start: str | None, dropout: float = 0.0) -> ModelConfig:
    """As wide and deep as so many training tokens can teach; of a model to start from, its own sizes."""
    if start is not None:
        kept = {key: value for key, value in fields.items() if key == "pooling"}
        return ModelConfig(preset, hidden_dropout_prob=dropout, fields=kept)
    layers, width = (2, 128) if tokens < 3_000_000 else (4, 256) if tokens < 100_000_000 else (8, 512)
    return small_model(preset, layers, width, width // 32, 4 * width, fields, dropout)


def _train(steps: int, batch: int, lr: float) -> TrainConfig:
    return with_steps(short_training(steps, batch, lr, every=1, keep=1, tracker="none"), steps)


def with_steps(train: TrainConfig, steps: int) -> TrainConfig:
    """``train`` for another number of updates, its warm-up, evaluations and checkpoints spread over them as before."""
    every = max(1, steps // _EVALUATIONS)
    return dataclasses.replace(train, steps=steps, warmup=steps // 10, eval_every=every, save_every=every)


def _steps(rows: float, batch: int) -> int:
    """Updates for ``rows``: enough to learn something, and no more than hours without a GPU."""
    return max(200, min(20_000, round(rows / batch)))


def _block(tokens: int, most: int) -> int:
    """Tokens of a block: at most a two-hundredth of the text, so that an epoch has some hundred."""
    return _power_of_two(tokens / 200, least=64, most=most)


def _power_of_two(value: float, *, least: int, most: int) -> int:
    return min(most, max(least, 1 << max(0, int(value).bit_length() - 1)))


def _note(summary: Summary) -> str:
    return f"Own data: {summary.rows['train']:,} training rows, {summary.tokens:,} tokens."
