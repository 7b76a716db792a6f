"""Every recipe is a value; its numbers are those of the sources; at paper size it builds and learns from a batch."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch

from cosformer.experiment import Experiment, TrainConfig, from_json
from cosformer.recipes import RECIPES, finetune, lm, lra, mlm, recipe
from cosformer.tasks import build_task
from cosformer.train.schedules import schedule
from studies.cosformer2022 import recipes as study

FINETUNED = ("qqp", "sst2", "mnli", "imdb", "amazon")
ARENA = ("listops", "text", "retrieval", "image", "pathfinder")
PAPER = ["lm-wikitext103", "lm-wikitext103-adam", "lm-wikitext2", "mlm-wikitext103", "mlm-wikitext2"]
PAPER += [f"finetune-{name}" for name in FINETUNED] + [f"lra-{name}" for name in ARENA]


def test_the_table_holds_each_experiment_and_a_small_form_of_it() -> None:
    small = {f"{name}-small" for name in PAPER}
    assert set(RECIPES) == {*PAPER, *small, *study.RECIPES, "lm-stdlib", "lm-stdlib-small"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_value_that_knows_its_name(name: str) -> None:
    experiment = recipe(name)
    assert experiment.recipe == name
    assert from_json(experiment.to_json()) == experiment == recipe(name)
    assert experiment.note
    if name != "lm-stdlib":  # made to write well, not to compare attentions
        assert experiment.model.attention == "cosformer" and not experiment.model.attention_options
    for config in (experiment, experiment.data, experiment.model, experiment.train):
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.note = ""  # type: ignore[misc]


def test_no_recipe_is_missing_from_the_table() -> None:
    for module in (lm, mlm, finetune, lra):
        for name, value in vars(module).items():
            if callable(value) and not name.startswith("_") and value.__module__ == module.__name__:
                assert RECIPES[name.replace("_", "-")] is value, f"{name} is not in the table of its file"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("lm-wikitext2-smal", "unknown recipe 'lm-wikitext2-smal'; did you mean 'lm-wikitext2-small'"),
        ("xyz", "known: .*lm-wikitext103, "),
    ],
)
def test_an_unknown_name_brings_the_nearest_or_the_list(wrong: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recipe(wrong)


# --- the numbers of the sources

ADAM = {"optimizer": "adam", "beta1": 0.9, "beta2": 0.98}
ROBERTA = ADAM | {"eps": 1e-6, "schedule": "linear", "clip": 0.0, "min_lr": 0.0}
FINE = ROBERTA | {"lr": 1e-5, "batch": 32, "weight_decay": 0.1}
LRA = ADAM | {"eps": 1e-9, "clip": 0.0}
RSQRT = LRA | {"batch": 32, "schedule": "inverse_sqrt", "weight_decay": 0.1}
COSINE = LRA | {"schedule": "cosine", "weight_decay": 0.0, "min_lr": 0.0}
SETTINGS = {
    "lm-wikitext103": {
        "optimizer": "nag",
        "momentum": 0.99,
        "weight_decay": 0.0,
        "lr": 1.0,
        "schedule": "cosine_cycles",
    }
    | {"warmup": 16_000, "cycle": 134_000, "min_lr": 1e-4, "steps": 150_000, "clip": 0.1, "batch": 144},
    "lm-wikitext103-adam": ADAM
    | {"lr": 5e-4, "weight_decay": 0.01, "schedule": "inverse_sqrt", "warmup": 8_000, "batch": 128, "clip": 0.0}
    | {"steps": 150_000},
    "mlm-wikitext103": ROBERTA | {"lr": 5e-4, "weight_decay": 0.01, "warmup": 3_000, "batch": 512, "steps": 50_000},
    "finetune-qqp": FINE | {"steps": 113_272, "warmup": 28_318},
    "finetune-sst2": FINE | {"steps": 20_935, "warmup": 1_256},
    "finetune-mnli": FINE | {"steps": 123_873, "warmup": 7_432},
    "finetune-imdb": FINE | {"steps": 7_812, "warmup": 469},
    "finetune-amazon": FINE,
    "lra-listops": RSQRT | {"steps": 5_000, "warmup": 1_000, "eval_every": 50},
    "lra-text": RSQRT | {"steps": 20_000, "warmup": 8_000, "eval_every": 100},
    "lra-retrieval": RSQRT | {"steps": 5_000, "warmup": 8_000, "eval_every": 100},
    "lra-image": COSINE
    | {"steps": 35_000, "batch": 256, "lr": 5e-4, "warmup": 175, "cycle": 35_000, "eval_every": 175},
    "lra-pathfinder": COSINE
    | {"steps": 62_400, "batch": 512, "lr": 1e-3, "warmup": 312, "cycle": 62_400, "eval_every": 312},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_training_is_as_the_sources_say(name: str) -> None:
    train = recipe(name).train
    assert {key: getattr(train, key) for key in SETTINGS[name]} == SETTINGS[name]


def test_tokens_of_an_update_of_the_language_models() -> None:
    nag, adam = recipe("lm-wikitext103"), recipe("lm-wikitext103-adam")
    assert nag.data.length == adam.data.length == 512
    assert nag.train.batch * 512 == 3_072 * 3 * 8, "tokens a GPU, accumulation, GPUs of the host's recipe"
    assert adam.train.batch * 512 == 65_536


def test_the_small_form_of_the_adam_variant_keeps_its_optimiser() -> None:
    large, small, other = (recipe(f"lm-wikitext103-{name}") for name in ("adam", "adam-small", "small"))
    for key in ("optimizer", "beta1", "beta2", "weight_decay", "schedule"):
        assert getattr(small.train, key) == getattr(large.train, key)
    assert small.train.schedule != other.train.schedule and small.model == other.model and small.data == other.data


@pytest.mark.parametrize("name", ["lra-listops", "lra-text", "lra-retrieval"])
def test_the_rate_is_the_benchmarks_inverse_square_root(name: str) -> None:
    train = recipe(name).train
    for t in (1, 10, 500, 1_000, 1_001, 4_000, 8_000, 12_345):
        theirs = 0.05 * min(1, t / train.warmup) / math.sqrt(max(t, train.warmup))
        assert _rate(train, t) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("name", ["lra-image", "lra-pathfinder"])
def test_the_rate_is_the_benchmarks_cosine(name: str) -> None:
    train = recipe(name).train
    cycle = {"lra-image": 35_000, "lra-pathfinder": 62_400}[name]
    for t in (1, train.warmup, train.warmup + 1, cycle // 2, cycle - 1):
        past = max(0, t - train.warmup)
        theirs = train.lr * min(1, t / train.warmup) * 0.5 * (1 + math.cos(math.pi * (past / cycle % 1)))
        assert _rate(train, t) == pytest.approx(theirs, rel=1e-12)


def _rate(train: TrainConfig, t: int) -> float:
    """At the benchmark's time t. Its last warm-up step and the peak are two of our updates at the same rate."""
    return train.lr * schedule(train)(t if t > train.warmup else t - 1)


@pytest.mark.parametrize(
    ("name", "data", "options"),
    [
        ("lra-listops", "listops", {}),
        ("lra-text", "text", {"max_length": 4_000}),
        ("lra-retrieval", "retrieval", {"max_length": 4_000}),
        ("lra-image", "image", {"lra_padding": True}),
        ("lra-pathfinder", "pathfinder", {"level": "hard", "lra_padding": True}),
        ("mlm-wikitext103", "wikitext103", {"tokenizer": "bpe:50265"}),
        ("finetune-mnli", "mnli", {"tokenizer": "start", "max_length": 512}),
        ("lra-pathfinder-small", "pathfinder", {"level": "tiny"}),
    ],
)
def test_the_data_are_those_of_the_sources(name: str, data: str, options: dict[str, object]) -> None:
    config = recipe(name).data
    assert config.name == data
    assert {key: config.options.get(key) for key in options} == options


# --- at paper size


def _with_few_rows(experiment: Experiment, few: Callable) -> Experiment:
    options = experiment.data.options | few(experiment)
    options = {key: ("bytes" if value == "start" else value) for key, value in options.items()}
    return dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, options=options))


def _linear(a: int, b: int, bias: bool = True) -> int:
    return a * b + b * bias


def _block(width: int, qkv: int, inner: int, bias: bool) -> int:
    attention = 3 * _linear(width, qkv, bias) + _linear(qkv, width, bias)
    return attention + _linear(width, inner) + _linear(inner, width) + 4 * width


BODIES = {  # the blocks: layers, width, queries and keys, feed-forward, biases in attention
    "lm-wikitext103": (16, 1_024, 1_024, 4_096, True),
    "lm-wikitext103-adam": (16, 1_024, 1_024, 4_096, True),
    "lm-wikitext2": (16, 1_024, 1_024, 4_096, True),
    "mlm-wikitext103": (12, 768, 768, 3_072, True),
    "mlm-wikitext2": (12, 768, 768, 3_072, True),
    **{f"finetune-{name}": (12, 768, 768, 3_072, True) for name in FINETUNED},
    "lra-listops": (4, 512, 512, 1_024, False),
    "lra-text": (4, 256, 256, 1_024, False),
    "lra-retrieval": (4, 128, 128, 512, False),
    "lra-image": (1, 128, 64, 128, False),
    "lra-pathfinder": (4, 32, 16, 32, False),
}
LONGEST = {"lra-listops": 2_001, "lra-text": 4_001, "lra-retrieval": 4_000, "lra-image": 1_025, "lra-pathfinder": 1_024}


@pytest.mark.parametrize("name", PAPER)
def test_the_model_has_the_sizes_of_the_paper(name: str, few: Callable) -> None:
    experiment = _with_few_rows(recipe(name), few)
    task = build_task(experiment)
    with torch.device("meta"):
        model = task.head(task.config(experiment.model))
    layers, *sizes = BODIES[name]
    blocks = model.model.layers
    assert len(blocks) == layers
    assert sum(p.numel() for p in blocks.parameters()) == layers * _block(*sizes)
    assert model.config.max_position_embeddings == LONGEST.get(name, 512)


# the larger hosts take a gigabyte and some seconds each
LARGE = [pytest.param(name, marks=pytest.mark.slow) for name in PAPER if not name.startswith("lra-")]


@pytest.mark.parametrize("name", [f"lra-{name}" for name in ARENA] + LARGE)
def test_a_batch_goes_forward_and_back(name: str, few: Callable) -> None:
    experiment = _with_few_rows(recipe(name), few)
    task = build_task(experiment)
    model = task.head(task.config(experiment.model)).train()
    loss = model(**task.collate([task.train_row(i, epoch=0) for i in range(2)])).loss
    loss.backward()
    assert torch.isfinite(loss)
    without = [n for n, p in model.named_parameters() if p.grad is None or not torch.isfinite(p.grad).all()]
    assert not without
    assert any(p.grad.abs().max() > 0 for n, p in model.named_parameters() if ".layers.0." in n and p.grad is not None)


# --- the study's


@pytest.mark.parametrize("name", study.RECIPES)
def test_a_run_of_evidence_scores_all_of_the_test_split_with_one_thread(name: str) -> None:
    experiment = recipe(name)
    # SST-2's test split has no labels; the pre-training is not scored itself; the arena's texts have no validation
    # split, and the protocol scores 4,000 rows of their test split
    exceptions = ("evidence-sst2-reviews", "evidence-reviews", "evidence-arena-text-1k", "evidence-arena-text-4k")
    assert experiment.data.full_test or name in exceptions
    assert experiment.train.threads == 1 and experiment.train.warmup == experiment.train.steps // 10
    assert experiment.model.hidden_dropout_prob == (0.3 if name == "evidence-sst2-reviews" else 0.0)


@pytest.mark.parametrize(("name", "rms"), [("lm-wikitext2-small", 1.0), ("evidence-lm", 0.34), ("evidence-mlm", 0.34)])
def test_tokens_do_not_drown_in_positions_nor_the_other_way(name: str, rms: float) -> None:
    """Token embeddings are scaled by sqrt(width); the sinusoids of positions have an rms of 0.71."""
    model = recipe(name).model
    scale = model.fields["embedding_range"]
    assert model.hidden_size is not None and isinstance(scale, float)
    assert scale * model.hidden_size**0.5 == pytest.approx(rms, abs=0.005)
