"""The recipes of the study: small enough for one core, large enough that attention shows (protocol.md).

Each trains in at most 45 minutes of one core. The learning rate that stands here is one of the search; each attention
gets the best for itself (``rates.py``).
"""

import dataclasses
from functools import partial

from cosformer import register_recipe
from cosformer.experiment import DataConfig, Experiment, ModelConfig, Option, TrainConfig
from cosformer.recipes.short import short_training, small_model


def evidence_pathfinder() -> Experiment:
    """Are two discs joined by a line? 12x12 pixels, so 144 positions, of which the black ones are masked."""
    options: dict[str, Option] = {"level": "tiny", "train": 60_000, "valid": 2_000, "test": 10_000, "lra_padding": True}
    fields: dict[str, Option] = {"embedding_range": 0.05, "position_embedding_type": "learned", "head_dim": 32}
    fields |= {"activation_dropout": 0.0, "cls_token": False, "pooling": "mean"}
    return Experiment(
        recipe="evidence-pathfinder",
        task="classify",
        data=DataConfig("pathfinder", options, full_test=True),
        model=small_model("lra_pathfinder", 2, 64, 2, 128, fields),
        train=_train(steps=1_200, batch=64, lr=1e-3, evaluations=4),
        note="60,000 images of 12x12 pixels, two dashes a line and no other lines; 2 layers of width 64.",
    )


def evidence_lm() -> Experiment:
    """Bytes of WikiText-2 in blocks of 128: a quarter of its 10.8 MB, in small updates."""
    fields: dict[str, Option] = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0, "activation_dropout": 0.0}
    # tokens start at half of the positions' rms of 0.71: linear attentions then find the bytes just before much sooner
    fields |= {"final_norm": True, "embedding_range": 0.03}
    return Experiment(
        recipe="evidence-lm",
        task="lm",
        data=DataConfig("wikitext2", {"tokenizer": "bytes"}, length=128, eval_rows=512, full_test=True),
        model=small_model("adaptive_lm", 3, 128, 2, 256, fields),
        train=_train(steps=1_200, batch=16, lr=4e-3, evaluations=4),
        note="Bytes, blocks of 128, 3 layers of width 128, 1,200 updates of 2,048 bytes.",
    )


def _lm_variant(name: str, *, max_len: int | None = None, positions: str | None = None, change: str) -> Experiment:
    plain = evidence_lm()
    fields = plain.model.fields | ({} if positions is None else {"position_embedding_type": positions})
    model = dataclasses.replace(plain.model, max_len=max_len, fields=fields)
    return dataclasses.replace(plain, recipe=name, model=model, note=f"{plain.note} {change}")


def evidence_lm_long() -> Experiment:
    """The same, trained four times as long: nearly one pass over the text."""
    plain = evidence_lm()
    train = _train(steps=4_800, batch=16, lr=4e-3, evaluations=4)
    return dataclasses.replace(plain, recipe="evidence-lm-long", train=train, note=plain.note.replace("1,200", "4,800"))


# a small encoder in which positions are easy to see: fixed ones, at twice the rms that tokens start with, no norm on
# their sum
_ENCODER: dict[str, Option] = {"norm": "pre", "final_norm": True, "embedding_norm": False, "hidden_act": "relu"}
_ENCODER |= {"position_embedding_type": "sinusoidal", "position_offset": 0, "scale_embedding": True}
_ENCODER |= {"embedding_range": 0.03, "initializer": "xavier", "classifier_dropout": 0.0}


def evidence_mlm() -> Experiment:
    """Masked bytes of WikiText-2, rows of 32."""
    return Experiment(
        recipe="evidence-mlm",
        task="mlm",
        data=DataConfig("wikitext2", {"tokenizer": "bytes"}, length=32, eval_rows=2_000, full_test=True, masked=0.25),
        model=small_model("roberta_base", 2, 128, 2, 256, _ENCODER),
        train=_train(steps=1_600, batch=64, lr=4e-3, evaluations=4),
        note="Bytes, rows of 32, 2 layers of width 128, pre-norm instead of post-norm, 1,600 updates of 64 rows, a "
        "quarter of the bytes hidden.",
    )


def evidence_reviews() -> Experiment:
    """Masked sub-words of film reviews, rows of 64: what evidence-sst2-reviews starts from."""
    plain = evidence_mlm()
    options: dict[str, Option] = {"tokenizer": "bpe-lower:8000", "max_length": 4_096}
    return dataclasses.replace(
        plain,
        recipe="evidence-reviews",
        data=DataConfig("imdb", options, length=64, eval_rows=500, masked=0.25),
        train=_train(steps=3_000, batch=32, lr=4e-3, evaluations=4),
        note="IMDB's reviews by a lower-case BPE of 8,000 entries, rows of 64 tokens, the model of evidence-mlm, 3,000 "
        "updates of 32 rows.",
    )


def evidence_sst2_reviews() -> Experiment:
    """Film review phrases, from a run of evidence-reviews."""
    fields: dict[str, Option] = {"pooling": "mean", "classifier_dropout": 0.3}
    train = _train(steps=1_600, batch=64, lr=1e-3, evaluations=4)
    return Experiment(
        recipe="evidence-sst2-reviews",
        task="classify",
        data=DataConfig("sst2", {"tokenizer": "start", "max_length": 64}),
        model=ModelConfig("roberta_base", hidden_dropout_prob=0.3, fields=fields),
        train=dataclasses.replace(train, group_by_length=True),
        note="Starts from a run of evidence-reviews (--start), rows cut at 64 tokens, the mean of all positions, "
        "dropout 0.3, 1,600 updates of 64 rows; all 872 validation rows are scored, the test split has no labels.",
    )


def evidence_listops() -> Experiment:
    """Nested operations on digits, 50 to 200 tokens."""
    options: dict[str, Option] = {"train": 90_000, "valid": 2_000, "test": 10_000}
    options |= {"longer_than": 50, "shorter_than": 200, "max_length": 200}
    fields: dict[str, Option] = {"embedding_range": 0.05, "position_embedding_type": "learned", "head_dim": 32}
    fields |= {"activation_dropout": 0.0, "cls_token": True, "pooling": "first"}
    return Experiment(
        recipe="evidence-listops",
        task="classify",
        data=DataConfig("listops", options, full_test=True),
        model=small_model("lra_listops", 3, 64, 2, 128, fields),
        train=_train(steps=4_000, batch=32, lr=1e-3, evaluations=4),
        note="90,000 trees of 50 to 200 tokens, 3 layers of width 64, 4,000 updates of 32 rows.",
    )


def _recall(head: int) -> Experiment:
    """Eight pairs to remember. Heads of 32 instead of 16 give linear attentions a state four times as large."""
    fields: dict[str, Option] = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0, "activation_dropout": 0.0}
    fields |= {"final_norm": True, "position_embedding_type": "learned", "initializer": "normal", "head_dim": head}
    fields |= {"scale_embedding": False}
    return Experiment(
        recipe=f"evidence-recall-{head}",
        task="recall",
        data=DataConfig("recall", {"length": 128, "pairs": 8}, full_test=True),
        model=small_model("adaptive_lm", 2, 64, 2, 128, fields),
        train=_train(steps=3_000, batch=64, lr=3e-3, evaluations=6),
        note=f"Multi-query recall of 8 pairs in rows of 128 tokens; 2 layers of width 64, 2 heads of {head}.",
    )


def evidence_arena_listops() -> Experiment:
    """Nested operations on digits, 500 to 2,000 tokens."""
    options: dict[str, Option] = {"train": 30_000, "valid": 1_000, "test": 2_000}
    data = DataConfig("listops", options, full_test=True)
    return _arena("listops", data, steps=900, says="Trees by the arena's rules")


def evidence_arena_text(name: str, length: int, *, steps: int) -> Experiment:
    """Film reviews as bytes. There is no validation split: 4,000 rows of the test split are all that is scored."""
    data = DataConfig("text", {"max_length": length}, eval_rows=4_000)
    return _arena(name, data, steps=steps, says=f"The first {length:,} bytes of a review")


def evidence_arena_image() -> Experiment:
    """Grey images of 32x32 pixels in a row; black pixels are data, not padding."""
    return _arena("image", DataConfig("image", full_test=True), steps=700, says="CIFAR-10 in grey")


def _arena(name: str, data: DataConfig, *, steps: int, says: str) -> Experiment:
    """A task of the Long Range Arena at its own length, with a small model."""
    fields: dict[str, Option] = {"embedding_range": 0.05, "position_embedding_type": "learned", "head_dim": 32}
    fields |= {"activation_dropout": 0.0, "cls_token": False, "pooling": "mean"}
    train = _train(steps=steps, batch=32, lr=1e-3, evaluations=2)
    return Experiment(
        recipe=f"evidence-arena-{name}",
        task="classify",
        data=data,
        model=small_model(f"lra_{data.name}", 2, 64, 2, 128, fields),
        train=dataclasses.replace(train, group_by_length=data.name != "image"),
        note=f"{says}; 2 layers of width 64, the mean of all positions, {steps:,} updates of 32 rows.",
    )


def _mqar(head: int) -> Experiment:
    """4 to 64 pairs to remember, in rows of 256 tokens."""
    plain = _recall(head)
    options: dict[str, Option] = {"length": 256, "pairs": 4, "most_pairs": 64, "keys": 128, "values": 128}
    return dataclasses.replace(
        plain,
        recipe=f"evidence-mqar-{head}",
        data=DataConfig("recall", options, full_test=True),
        train=_train(steps=2_000, batch=32, lr=2e-3, evaluations=4),
        note="Multi-query recall of 4, 8, 16, 32 or 64 pairs in rows of 256 tokens, 128 keys and values; 2 layers of "
        f"width 64, 2 heads of {head}.",
    )


def _train(*, steps: int, batch: int, lr: float, evaluations: int) -> TrainConfig:
    every = steps // evaluations
    return short_training(steps, batch, lr, every=every, save_every=every // 4, keep=1, tracker="none", threads=1)


_M2, _M4 = "max_len, the paper's M, is 2N = 256.", "max_len, the paper's M, is 4N = 512."
RECIPES = {
    "evidence-pathfinder": evidence_pathfinder,
    "evidence-lm": evidence_lm,
    "evidence-lm-long": evidence_lm_long,
    # a flatter cosine
    "evidence-lm-m2": partial(_lm_variant, "evidence-lm-m2", max_len=256, change=_M2),
    "evidence-lm-m4": partial(_lm_variant, "evidence-lm-m4", max_len=512, change=_M4),
    # where tokens are, the model learns from the mask and, with cosFormer, from the cosine alone
    "evidence-lm-nopos": partial(_lm_variant, "evidence-lm-nopos", positions="none", change="No position embeddings."),
    "evidence-mlm": evidence_mlm,
    "evidence-reviews": evidence_reviews,
    "evidence-sst2-reviews": evidence_sst2_reviews,
    "evidence-listops": evidence_listops,
    "evidence-recall-16": partial(_recall, 16),
    "evidence-recall-32": partial(_recall, 32),
    # the same again for other attentions, whose rates are searched for half of the length
    "evidence-parity": lambda: dataclasses.replace(evidence_lm(), recipe="evidence-parity"),
    "evidence-parity-long": lambda: dataclasses.replace(evidence_lm_long(), recipe="evidence-parity-long"),
    "evidence-parity-mlm": lambda: dataclasses.replace(evidence_mlm(), recipe="evidence-parity-mlm"),
    "evidence-arena-listops": evidence_arena_listops,
    "evidence-arena-text-1k": partial(evidence_arena_text, "text-1k", 1_024, steps=900),
    "evidence-arena-text-4k": partial(evidence_arena_text, "text-4k", 4_096, steps=500),
    "evidence-arena-image": evidence_arena_image,
    **{f"evidence-mqar-{head}": partial(_mqar, head) for head in (16, 32, 64)},
}


def register() -> None:
    """Make them known to ``cosformer train`` and the others."""
    for name, make in RECIPES.items():
        register_recipe(name, make)
