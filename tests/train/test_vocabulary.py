"""A run can be used when the data it was trained on is gone: its vocabulary is kept with its best weights."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from cosformer.cli import main
from cosformer.data.encoding import with_specials
from cosformer.experiment import DataConfig, Experiment, load_experiment
from cosformer.tasks import build_task
from cosformer.tasks.tokenizer import with_tokenizer
from cosformer.train import train
from cosformer.train.vocabulary import load_vocabulary

TEXT = "the naïve cat sat on a mat"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "wikitext"
    folder.mkdir()
    for split, lines in {"train": 80, "valid": 10, "test": 10}.items():
        (folder / f"wiki.{split}.tokens").write_text(f" {TEXT} , and saw the birds fly . \n" * lines)
    return folder


@pytest.fixture
def experiment(small: Callable[..., Experiment], corpus: Path) -> Callable[[str], Experiment]:
    """One update of a model whose BPE is learnt from the text."""
    options = {"path": str(corpus), "tokenizer": "bpe:300"}
    data = {"name": "wikitext2", "options": options, "length": 32, "eval_rows": 2}
    return lambda task: small(task=task, data=data, steps=1, batch=2)


def _forget(corpus: Path) -> None:
    """Neither the prepared data nor its source is left."""
    assert main(["data", "clean"]) == 0
    shutil.rmtree(corpus)


@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_the_tokenizer_of_a_run_outlives_its_data(experiment, corpus, tmp_path, task) -> None:
    run = tmp_path / "run"
    train(experiment(task), run, quiet=True)
    before: Any = build_task(experiment(task)).dataset.vocabulary
    wanted = before.encode([TEXT])[0]
    _forget(corpus)
    with pytest.raises(FileNotFoundError):
        build_task(experiment(task))
    kept: Any = load_vocabulary(run)
    assert kept.encode([TEXT])[0].tolist() == wanted.tolist() and kept.decode(wanted) == TEXT
    theirs = AutoTokenizer.from_pretrained(run / "best")
    row = wanted if task == "lm" else with_specials(np.asarray(wanted), None, before, 512)[0]
    assert theirs(TEXT)["input_ids"] == row.tolist() and len(wanted) < len(TEXT)
    assert theirs.decode(wanted) == TEXT
    for name in ("bos", "eos", "pad", "mask", "unk"):
        assert getattr(theirs, f"{name}_token_id") == getattr(before, f"{name}_id")


def test_a_language_model_of_a_learnt_bpe_continues_a_text_without_its_data(
    experiment, corpus, tmp_path, capsys
) -> None:
    train(experiment("lm"), tmp_path / "run", quiet=True)
    words = ["generate", str(tmp_path / "run"), "--prompt", "the cat", "--greedy", "--max-new-tokens", "5"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    _forget(corpus)
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out == printed and printed.startswith("the cat")


def test_fine_tuning_takes_the_tokenizer_that_was_kept(experiment, corpus, tmp_path) -> None:
    run = tmp_path / "run"
    train(experiment("mlm"), run, quiet=True)
    tuning = dataclasses.replace(load_experiment(run), start=str(run), data=DataConfig("sst2", {"tokenizer": "start"}))
    _forget(corpus)
    assert with_tokenizer(tuning).options["tokenizer"] == str(run / "best")


def test_a_run_without_one_asks_its_data(experiment, tmp_path) -> None:
    run = tmp_path / "run"
    train(experiment("mlm"), run, quiet=True)
    for path in (run / "best").glob("*.json"):
        if path.name != "config.json":
            path.unlink()
    assert load_vocabulary(run).size == build_task(experiment("mlm")).dataset.vocab_size > 261
