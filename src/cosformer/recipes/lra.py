"""Long Range Arena, the paper's tables 4 and 5: the benchmark's own settings for its Transformer, and small ones."""

from typing import Any

from cosformer.experiment import DataConfig, Experiment, ModelConfig, Option, TrainConfig
from cosformer.recipes.short import short_training, small_model

# the benchmark writes base * min(1, t / w) / sqrt(max(t, w)), w the warm-up: its peak is base / sqrt(w)
_BASE = 0.05


def lra_listops() -> Experiment:
    """Nested operations on digits, 2,000 tokens."""
    train = _train(steps=5_000, batch=32, lr=_BASE / 1_000**0.5, warmup=1_000, eval_every=50)
    return _lra("listops", DataConfig("listops", length=2_000), train)


def lra_text() -> Experiment:
    """IMDB reviews as bytes, at most 4,000 of each."""
    train = _train(steps=20_000, batch=32, lr=_BASE / 8_000**0.5, warmup=8_000, eval_every=100)
    note = " Length as in the benchmark's paper; its configuration file says 1,000. IMDB has no validation split."
    return _lra("text", DataConfig("text", {"max_length": 4_000}), train, note)


def lra_retrieval() -> Experiment:
    """Pairs of papers, 4,000 bytes each, through one shared encoder."""
    train = _train(steps=5_000, batch=32, lr=_BASE / 8_000**0.5, warmup=8_000, eval_every=100)
    note = " The warm-up is longer than the run: the rate rises to the end, as in the benchmark."
    return _lra("retrieval", DataConfig("retrieval", {"max_length": 4_000}), train, note, task="match")


def lra_image() -> Experiment:
    """Grey CIFAR-10, 1,024 pixels; pixels of value 0 count as padding, as in the benchmark."""
    train = _train(steps=35_000, batch=256, lr=5e-4, warmup=175, eval_every=175, cycle=35_000)
    return _lra("image", DataConfig("image", {"lra_padding": True}), train)


def lra_pathfinder() -> Experiment:
    """Pathfinder, hard level, 1,024 pixels; the black background counts as padding, as in the benchmark."""
    train = _train(steps=62_400, batch=512, lr=1e-3, warmup=312, eval_every=312, cycle=62_400)
    note = " That the hard level is meant is not stated by the benchmark."
    return _lra("pathfinder", DataConfig("pathfinder", {"level": "hard", "lra_padding": True}), train, note)


def _train(*, eval_every: int, cycle: int | None = None, **others: Any) -> TrainConfig:
    """The benchmark's Adam; with ``cycle`` its cosine and no weight decay, without its inverse square root."""
    schedule, decay = ("inverse_sqrt", 0.1) if cycle is None else ("cosine", 0.0)
    every = {"eval_every": eval_every, "save_every": eval_every}
    return TrainConfig(beta2=0.98, eps=1e-9, weight_decay=decay, schedule=schedule, cycle=cycle, **every, **others)


def _lra(name: str, data: DataConfig, train: TrainConfig, note: str = "", task: str = "classify") -> Experiment:
    return Experiment(
        recipe=f"lra-{name}",
        task=task,
        data=data,
        model=ModelConfig(f"lra_{name}"),
        train=train,
        note="The benchmark's settings for its Transformer; the cosFormer paper states none. Attention dropout is 0 "
        "(the host has some)." + note,
    )


def lra_listops_small() -> Experiment:
    options: dict[str, Option] = {"train": 20_000, "valid": 1_000, "test": 2_000}
    options |= {"longer_than": 50, "shorter_than": 200, "max_length": 200}
    shrunk = "20,000 trees of 50 to 200 tokens"
    return _small("listops", options, shrunk, layers=2, batch=32, steps=500, lr=1e-3, cls_token=True)


def lra_text_small() -> Experiment:
    shrunk = "the first 1,024 bytes of a review"
    return _small("text", {"max_length": 1_024}, shrunk, layers=1, batch=16, steps=700, lr=2e-3)


def lra_retrieval_small() -> Experiment:
    shrunk = "the first 512 bytes of each paper"
    return _small("retrieval", {"max_length": 512}, shrunk, layers=1, batch=16, steps=400, lr=1e-3, task="match")


def lra_image_small() -> Experiment:
    return _small("image", {}, "black pixels are data, not padding", layers=1, batch=16, steps=250, lr=3e-3)


def lra_pathfinder_small() -> Experiment:
    """The easy level stays at chance for longer than ten minutes: its images are shrunk, and its snakes."""
    options: dict[str, Option] = {"level": "tiny", "train": 60_000, "valid": 2_000, "test": 2_000, "lra_padding": True}
    shrunk = "60,000 images of 12x12 pixels, two dashes a snake and no distractors"
    return _small("pathfinder", options, shrunk, layers=2, batch=64, steps=1_500, lr=3e-3)


def _small(
    name: str,
    options: dict[str, Option],
    shrunk: str,
    *,
    layers: int,
    batch: int,
    steps: int,
    lr: float,
    cls_token: bool = False,
    task: str = "classify",
) -> Experiment:
    """Width 64, learned positions, mean pooling: one to eight minutes on one core, with softmax attention."""
    # embeddings that start small take up what they learn in a few hundred updates; the benchmark's start with 1.0
    learned: dict[str, Option] = {"embedding_range": 0.05, "position_embedding_type": "learned"}
    plain: dict[str, Option] = {"head_dim": 32, "activation_dropout": 0.0}
    plain |= {"cls_token": True, "pooling": "first"} if cls_token else {"cls_token": False, "pooling": "mean"}
    return Experiment(
        recipe=f"lra-{name}-small",
        task=task,
        data=DataConfig(name, options, eval_rows=2_000),
        model=small_model(f"lra_{name}", layers, 64, 2, 128, learned | plain),
        train=short_training(steps, batch, lr, every=50, eval_every=max(50, steps // 4)),
        note=f"Small: {shrunk}; {layers} layer{'s' * (layers > 1)} of width 64, small learned embeddings, no dropout, "
        f"{steps:,} updates of {batch} rows, at most 2,000 rows of a split scored. The hyper-parameters were chosen "
        "with softmax attention.",
    )


RECIPES = {
    "lra-listops": lra_listops,
    "lra-listops-small": lra_listops_small,
    "lra-text": lra_text,
    "lra-text-small": lra_text_small,
    "lra-retrieval": lra_retrieval,
    "lra-retrieval-small": lra_retrieval_small,
    "lra-image": lra_image,
    "lra-image-small": lra_image_small,
    "lra-pathfinder": lra_pathfinder,
    "lra-pathfinder-small": lra_pathfinder_small,
}
