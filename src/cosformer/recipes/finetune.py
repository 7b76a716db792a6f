"""Fine-tuning, the paper's tables 1 and 3: a pre-trained encoder learns to classify texts, "same protocol as RoBERTa"."""

from cosformer.experiment import DataConfig, Experiment, ModelConfig, Option, TrainConfig


def finetune_qqp() -> Experiment:
    return _finetune("qqp", steps=113_272, warmup=28_318)


def finetune_sst2() -> Experiment:
    return _finetune("sst2", steps=20_935, warmup=1_256)


def finetune_mnli() -> Experiment:
    return _finetune("mnli", steps=123_873, warmup=7_432)


def finetune_imdb() -> Experiment:
    return _finetune("imdb", steps=7_812, warmup=469)


def finetune_amazon() -> Experiment:
    return _finetune(
        "amazon",
        steps=189_551,
        warmup=11_373,
        note=" Rate, batch and warm-up share as for the other sets and two passes over the rows are our guess: nothing is stated.",
    )


def _finetune(name: str, *, steps: int, warmup: int, note: str = "") -> Experiment:
    """RoBERTa's recipe: 32 rows an update, peak rate 1e-5, down in a line to 0, weight decay 0.1, no clipping."""
    return Experiment(
        recipe=f"finetune-{name}",
        task="classify",
        data=DataConfig(name, {"tokenizer": "start", "max_length": 512}),
        model=ModelConfig("roberta_base"),
        train=TrainConfig(
            steps=steps,
            batch=32,
            lr=1e-5,
            beta2=0.98,
            eps=1e-6,
            weight_decay=0.1,
            schedule="linear",
            warmup=warmup,
            eval_every=1_000,
            save_every=1_000,
        ),
        note="Starts from a run of mlm-wikitext103 or from a RoBERTa checkpoint, given as --start." + note,
    )


def finetune_qqp_small() -> Experiment:
    return _small("qqp", {})


def finetune_sst2_small() -> Experiment:
    return _small("sst2", {})


def finetune_mnli_small() -> Experiment:
    return _small("mnli", {})


def finetune_imdb_small() -> Experiment:
    return _small("imdb", {})


def finetune_amazon_small() -> Experiment:
    return _small("amazon", {"fraction": 0.01})


def _small(name: str, options: dict[str, Option]) -> Experiment:
    """From a run of mlm-wikitext2-small; rows of at most 64 tokens: about a minute on one core."""
    return Experiment(
        recipe=f"finetune-{name}-small",
        task="classify",
        data=DataConfig(name, {"tokenizer": "start", "max_length": 64, **options}, eval_rows=1_000),
        model=ModelConfig("roberta_base", dropout=0.0, fields={"pooling": "mean", "classifier_dropout": 0.0}),
        train=TrainConfig(
            steps=500,
            batch=32,
            lr=1e-3,
            schedule="linear",
            warmup=50,
            clip=1.0,
            eval_every=100,
            save_every=100,
            log_every=10,
        ),
        note="Small: starts from a run of mlm-wikitext2-small (--start), rows cut at 64 tokens, the mean of all positions instead of"
        " the first, 500 updates of 32 rows, 1,000 rows of a split scored. The hyper-parameters were chosen with softmax attention.",
    )
