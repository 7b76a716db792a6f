"""Masked language modelling, the pre-training of the paper's tables 1 and 3: RoBERTa with its attention exchanged."""

from functools import partial
from typing import Any

from cosformer.experiment import DataConfig, Experiment, ModelConfig, Option, TrainConfig
from cosformer.recipes.short import short_training, small_model

_LENGTH = 512


def mlm_wikitext103() -> Experiment:
    """RoBERTa-base on WikiText-103."""
    return Experiment(
        recipe="mlm-wikitext103",
        task="mlm",
        data=DataConfig("wikitext103", {"tokenizer": "bpe:50265"}, length=_LENGTH),
        model=ModelConfig("roberta_base", max_len=_LENGTH),
        train=_train(steps=50_000, batch=512, warmup=3_000, eval_every=1_000),
        note="The paper states host, length and updates; peak rate, warm-up and batch are those of the authors' later "
        "scripts. The BPE is learnt from the training text; for GPT-2's own give its folder as "
        "--data.options.tokenizer. Attention dropout is 0 (the host has 0.1).",
    )


def mlm_wikitext2() -> Experiment:
    """RoBERTa-base on WikiText-2."""
    return Experiment(
        recipe="mlm-wikitext2",
        task="mlm",
        data=DataConfig("wikitext2", {"tokenizer": "bpe:8000"}, length=_LENGTH),
        model=ModelConfig("roberta_base", max_len=_LENGTH),
        train=_train(steps=10_000, batch=64, warmup=1_000, eval_every=500),
        note="Not in the paper: mlm-wikitext103 on a fiftieth of the text; vocabulary, batch, warm-up and updates are "
        "our guess.",
    )


def _train(*, eval_every: int, **others: Any) -> TrainConfig:
    """RoBERTa's optimiser: Adam with weight decay, a rate that rises and then falls in a line to 0, no clipping."""
    adam: dict[str, Any] = {"lr": 5e-4, "beta2": 0.98, "eps": 1e-6, "weight_decay": 0.01, "schedule": "linear"}
    return TrainConfig(**adam, micro_batch=4, eval_every=eval_every, save_every=eval_every, **others)


def _small(data: str) -> Experiment:
    """A thousand sub-words, rows of 64, two layers of width 128: about a minute on one core."""
    fields: dict[str, Option] = {"norm": "pre", "final_norm": True, "classifier_dropout": 0.0}
    return Experiment(
        recipe=f"mlm-{data}-small",
        task="mlm",
        data=DataConfig(data, {"tokenizer": "bpe:1000"}, length=64, eval_rows=1_000),
        model=small_model("roberta_base", 2, 128, 4, 512, fields),
        train=short_training(500, 32, 3e-3, every=100),
        note="Small: a BPE of 1,000 entries, rows of 64 tokens, 2 layers of width 128, pre-norm instead of post-norm, "
        "500 updates of 32 rows, the first 1,000 rows of a split scored. The hyper-parameters were chosen with softmax "
        "attention.",
    )


RECIPES = {
    "mlm-wikitext103": mlm_wikitext103,
    "mlm-wikitext103-small": partial(_small, "wikitext103"),
    "mlm-wikitext2": mlm_wikitext2,
    "mlm-wikitext2-small": partial(_small, "wikitext2"),
}
