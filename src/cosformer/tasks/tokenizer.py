"""Fine-tuning reads text as the model it starts from does: the option ``tokenizer="start"`` of a text set."""

import dataclasses
from pathlib import Path

from cosformer.data import load_dataset
from cosformer.data.subwords import is_learnt
from cosformer.experiment import EXPERIMENT_FILE, DataConfig, Experiment, load_experiment

START = "start"
_FILES = ("tokenizer.json", "vocab.json", "vocab.txt")


def with_tokenizer(experiment: Experiment) -> DataConfig:
    """The data of ``experiment``, with ``tokenizer="start"`` resolved to that of the run it starts from."""
    data = experiment.data
    if data.options.get("tokenizer") != START:
        return data
    return dataclasses.replace(data, options=data.options | {"tokenizer": _tokenizer_of(experiment)})


def _tokenizer_of(experiment: Experiment) -> str:
    start = experiment.start
    if start is None:
        raise ValueError(
            f"{experiment.recipe} starts from a trained encoder: give --start a run of an mlm-... recipe (or the "
            "folder of a RoBERTa checkpoint); or, to train from scratch, --data.options.tokenizer bytes or a "
            "tokenizer's folder"
        )
    folder = Path(start)
    if (folder / EXPERIMENT_FILE).is_file():
        before = load_experiment(folder)
        data = with_tokenizer(before)
        tokenizer = str(data.options.get("tokenizer", "bytes"))
        if not is_learnt(tokenizer):
            return tokenizer
        # a BPE that was learnt from the data is kept with the weights, and with the prepared data
        kept = folder / "best"
        return str(kept if (kept / _FILES[0]).is_file() else load_dataset(data.name, **data.options).folder)
    if any((folder / name).exists() for name in _FILES):
        return start
    raise FileNotFoundError(
        f"start={start!r} is no run, and no folder that holds a tokenizer ({', '.join(_FILES)}); give the checkpoint's "
        "tokenizer as --data.options.tokenizer FOLDER"
    )
