"""Fine-tuning, tables 1 and 3 of the paper: a pre-trained encoder learns to classify texts."""

from functools import partial
from typing import Any

from cosformer.experiment import DataConfig, Experiment, ModelConfig, Option, TrainConfig
from cosformer.recipes.short import short_training

# set -> updates, and those of the warm-up
_UPDATES = {
    "qqp": (113_272, 28_318),
    "sst2": (20_935, 1_256),
    "mnli": (123_873, 7_432),
    "imdb": (7_812, 469),
    "amazon": (189_551, 11_373),
}
_NOTES = {
    "amazon": " Rate, batch and warm-up share as for the other sets and two passes over the rows are our guess: "
    "nothing is stated.",
}
_SMALL_OPTIONS: dict[str, dict[str, Option]] = {"amazon": {"fraction": 0.01}}


def _full(name: str) -> Experiment:
    """RoBERTa's recipe: 32 rows an update, peak rate 1e-5, down in a line to 0, weight decay 0.1, no clipping."""
    steps, warmup = _UPDATES[name]
    adam: dict[str, Any] = {"lr": 1e-5, "beta2": 0.98, "eps": 1e-6, "weight_decay": 0.1, "schedule": "linear"}
    return Experiment(
        recipe=f"finetune-{name}",
        task="classify",
        data=DataConfig(name, {"tokenizer": "start", "max_length": 512}),
        model=ModelConfig("roberta_base"),
        train=TrainConfig(steps=steps, batch=32, **adam, warmup=warmup),
        note="Starts from a run of mlm-wikitext103 or from a RoBERTa checkpoint, given as "
        f"--start.{_NOTES.get(name, '')}",
    )


def _small(name: str) -> Experiment:
    """From a run of mlm-wikitext2-small; rows of at most 64 tokens: about a minute on one core."""
    options = {"tokenizer": "start", "max_length": 64, **_SMALL_OPTIONS.get(name, {})}
    return Experiment(
        recipe=f"finetune-{name}-small",
        task="classify",
        data=DataConfig(name, options, eval_rows=1_000),
        model=ModelConfig(
            "roberta_base", hidden_dropout_prob=0.0, fields={"pooling": "mean", "classifier_dropout": 0.0}
        ),
        train=short_training(500, 32, 1e-3, every=100),
        note="Small: starts from a run of mlm-wikitext2-small (--start), rows cut at 64 tokens, the mean of all "
        "positions instead of the first, 500 updates of 32 rows, 1,000 rows of a split scored. The hyper-parameters "
        "were chosen with softmax attention.",
    )


RECIPES = {
    f"finetune-{name}{size}": partial(make, name)
    for name in _UPDATES
    for size, make in (("", _full), ("-small", _small))
}
