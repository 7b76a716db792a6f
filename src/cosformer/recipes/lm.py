"""Causal language modelling: WikiText-103 as in the paper's table 2, WikiText-2, and small recipes."""

import dataclasses
from functools import partial
from typing import Any

from cosformer.experiment import DataConfig, Experiment, ModelConfig, Option, TrainConfig
from cosformer.recipes.short import short_training, small_model

_BLOCK = 512
# a model of bytes of width 128: no bands of rare words, nothing dropped
_BYTES: dict[str, Option] = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0, "activation_dropout": 0.0}
# positions have an rms of 0.71 whatever the width: tokens start alike
_BYTES |= {"final_norm": True, "embedding_range": 128**-0.5}


def lm_wikitext103() -> Experiment:
    """The adaptive-input host with its own optimiser: Nesterov momentum and cosine cycles."""
    return Experiment(
        recipe="lm-wikitext103",
        task="lm",
        data=DataConfig("wikitext103", {"tokenizer": "words"}, length=_BLOCK),
        model=ModelConfig("adaptive_lm", max_len=_BLOCK),
        train=TrainConfig(
            steps=150_000,
            batch=144,
            lr=1.0,
            optimizer="nag",
            momentum=0.99,
            schedule="cosine_cycles",
            warmup=16_000,
            cycle=134_000,
            min_lr=1e-4,
            clip=0.1,
            micro_batch=6,
            eval_every=5_000,
            save_every=1_000,
        ),
        note="The paper states host, length and updates; that the first cycle ends with the last update, and 144 "
        "blocks an update (73,728 tokens, the host's), are our choice. Attention dropout is 0 (the host has 0.1).",
    )


def lm_wikitext103_adam() -> Experiment:
    """The same host with Adam and a learning rate that falls with the square root of the updates."""
    return Experiment(
        recipe="lm-wikitext103-adam",
        task="lm",
        data=DataConfig("wikitext103", {"tokenizer": "words"}, length=_BLOCK),
        model=ModelConfig("adaptive_lm", max_len=_BLOCK, hidden_dropout_prob=0.1),
        train=_adam(steps=150_000, batch=128, warmup=8_000, eval_every=5_000, save_every=1_000),
        note="Optimiser, batch and dropout of the authors' later scripts, which make 100,000 updates; length and "
        "150,000 updates are the paper's. Attention dropout is 0 (the host has 0.1).",
    )


def lm_wikitext2() -> Experiment:
    """The same host on a fiftieth of the text, with one plain softmax over its 33,000 words."""
    return Experiment(
        recipe="lm-wikitext2",
        task="lm",
        data=DataConfig("wikitext2", {"tokenizer": "words"}, length=_BLOCK),
        model=ModelConfig(
            "adaptive_lm", max_len=_BLOCK, fields={"adaptive_cutoffs": None, "embedding_range": 1_024**-0.5}
        ),
        train=_adam(steps=6_000, batch=32, warmup=1_000, eval_every=250, save_every=250),
        note="Not in the paper: the host and optimiser of lm-wikitext103-adam with the host's own dropout (0.3); "
        "batch, warm-up and updates are our guess. No adaptive softmax: its bands are made for eight times as many "
        "words.",
    )


def _adam(**others: Any) -> TrainConfig:
    return TrainConfig(lr=5e-4, beta2=0.98, weight_decay=0.01, schedule="inverse_sqrt", **others)


def lm_wikitext103_adam_small() -> Experiment:
    """The text and the model of lm-wikitext103-small, with the schedule and the weight decay of lm-wikitext103-adam."""
    plain = _small("wikitext103")
    train = dataclasses.replace(plain.train, schedule="inverse_sqrt", weight_decay=0.01)
    note = f"{plain.note} The rate falls with the square root of the updates, weight decay is 0.01."
    return dataclasses.replace(plain, recipe="lm-wikitext103-adam-small", train=train, note=note)


def lm_stdlib() -> Experiment:
    """The shipped model: Python's own sources as bytes, 2,048 at a time, less than an hour on one core."""
    return Experiment(
        recipe="lm-stdlib",
        task="lm",
        data=DataConfig("python", {"max_bytes": 30_000_000}, length=2_048, eval_rows=64),
        model=ModelConfig(
            "adaptive_lm",
            attention="local,cosformer",
            attention_options={"local.window": 32},
            num_hidden_layers=6,
            hidden_size=128,
            num_attention_heads=4,
            intermediate_size=512,
            hidden_dropout_prob=0.0,
            fields=_BYTES | {"hidden_act": "gelu"},
        ),
        train=TrainConfig(
            steps=6_000,
            batch=2,
            lr=3e-3,
            weight_decay=0.01,
            schedule="cosine",
            warmup=300,
            clip=1.0,
            eval_batch=2,
            precision="bf16",
            eval_every=500,
            save_every=100,
            log_every=20,
            tracker="none",
            threads=1,
        ),
        note="The model that `cosformer generate` takes when none is named. Bytes, blocks of 2,048, 6 layers of width "
        "128: three with cosFormer, which see the whole block, and three that see the last 32 bytes, before them by "
        "turns; 6,000 updates of 4,096 bytes, about three times over all sources; the first 64 blocks of a split "
        "scored.",
    )


def _small(name: str) -> Experiment:
    """Bytes in blocks of 256, two layers of width 128: about a minute and a half on one core."""
    text = DataConfig("python") if name == "stdlib" else DataConfig(name, {"tokenizer": "bytes"})
    return Experiment(
        recipe=f"lm-{name}-small",
        task="lm",
        data=dataclasses.replace(text, length=256, eval_rows=128),
        model=small_model("adaptive_lm", 2, 128, 4, 512, _BYTES),
        train=short_training(300, 16, 3e-3, every=100),
        note="Small: bytes, blocks of 256, 2 layers of width 128, 300 updates of 4,096 bytes, the first 128 blocks of "
        "a split scored. The hyper-parameters were chosen with softmax attention.",
    )


RECIPES = {
    "lm-wikitext103": lm_wikitext103,
    "lm-wikitext103-adam": lm_wikitext103_adam,
    "lm-wikitext103-small": partial(_small, "wikitext103"),
    "lm-wikitext103-adam-small": lm_wikitext103_adam_small,
    "lm-wikitext2": lm_wikitext2,
    "lm-wikitext2-small": partial(_small, "wikitext2"),
    "lm-stdlib": lm_stdlib,
    "lm-stdlib-small": partial(_small, "stdlib"),
}
