"""Every small recipe trains for two updates through the command on made-up rows."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cosformer.cli import main
from cosformer.experiment import load_experiment
from cosformer.recipes import RECIPES, recipe
from cosformer.tasks import build_task

SMALL = [name for name in RECIPES if name.endswith("-small")]
SHORT = ["--train.steps", "2", "--train.batch", "2", "--data.eval-rows", "3", "--train.tracker", "none", "--quiet"]


def _words(name: str, folder: Path, few: Callable) -> list[str]:
    options = [word for key, value in few(recipe(name)).items() for word in (f"--data.options.{key}", str(value))]
    return [name, "--run", str(folder), *SHORT, *options]


@pytest.fixture(scope="module")
def encoder(few: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of mlm-wikitext2-small."""
    folder = tmp_path_factory.mktemp("mlm") / "run"
    assert main(["train", *_words("mlm-wikitext2-small", folder, few)]) == 0
    return folder


@pytest.mark.parametrize("name", SMALL)
def test_two_updates(name: str, few: Callable, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    words = _words(name, tmp_path / "run", few)
    if name.startswith("finetune-"):
        words += ["--start", str(request.getfixturevalue("encoder"))]
    assert main(["train", *words]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["steps"] == 2 and result["recipe"] == name and result["attention"] == "cosformer"
    assert result["scores"].keys() == result["baseline"].keys() == result["learned"].keys()
    assert "valid" in result["scores"] or "test" in result["scores"]


def test_fine_tuning_reads_with_the_tokenizer_of_its_start(encoder: Path, few: Callable, tmp_path: Path) -> None:
    words = [*_words("finetune-sst2-small", tmp_path / "run", few), "--start", str(encoder)]
    assert main(["train", *words]) == 0
    experiment = load_experiment(tmp_path / "run")
    assert experiment.data.options["tokenizer"] == "start", "a run can be moved together with the one it starts from"
    tuned, before = build_task(experiment).dataset.vocabulary, build_task(load_experiment(encoder)).dataset.vocabulary
    ids, lengths = tuned.encode(["the cat sat"])  # type: ignore[attr-defined]
    assert tuned.size == before.size != 260 and before.decode(ids) == "the cat sat" and lengths.tolist() == [len(ids)]


def test_fine_tuning_without_a_start_says_what_to_give(
    few: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *_words("finetune-sst2-small", tmp_path / "run", few)]) == 2
    said = capsys.readouterr().err
    assert "give --start a run of an mlm-... recipe" in said and "--data.options.tokenizer bytes" in said
    assert not (tmp_path / "run").exists()
