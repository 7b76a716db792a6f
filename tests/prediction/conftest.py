"""Two small runs that have learnt next to nothing: a classifier and a language model, both of bytes."""

from pathlib import Path

import pytest

from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.train import train

SIZES = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
}
LENGTH = 48


def _train(run: Path, task: str, data: DataConfig, model: ModelConfig) -> Path:
    settings = TrainConfig(1, 4, 3e-3, tracker="none", threads=1)
    train(Experiment("test", task, data, model, settings), run, quiet=True)
    return run


@pytest.fixture(autouse=True)
def surroundings(one_thread: None) -> None:
    """One thread."""


@pytest.fixture(scope="session")
def classifier(data_home: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    rows = ["a fine film\t1", "dull\t0", "good\t1", "bad\t0"]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    model = ModelConfig("lra_text", **SIZES, fields={"head_dim": 8, "classifier_sizes": [16], "initializer": "xavier"})
    data = DataConfig("sst2", {"path": str(folder), "max_length": LENGTH})
    return _train(folder / "run", "classify", data, model)


@pytest.fixture(scope="session")
def language_model(data_home: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = {"adaptive_cutoffs": None, "adaptive_dropout": 0.0, "activation_dropout": 0.0}
    model = ModelConfig("adaptive_lm", **SIZES, fields=plain)
    data = DataConfig("python", {"max_bytes": 300_000}, length=32, eval_rows=2)
    return _train(tmp_path_factory.mktemp("lm") / "run", "lm", data, model)
