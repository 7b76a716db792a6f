"""Attentions, data sets, tasks and recipes from outside of the package, and an experiment's file as the recipe."""

import sys
from pathlib import Path

import pytest
import torch

import cosformer
from cosformer import cli
from cosformer.attention.feature_maps import Relu
from cosformer.commands.train import parse
from cosformer.data import dataset_function
from cosformer.plugins import load_plugins
from cosformer.recipes import recipe
from cosformer.tasks import task_class
from cosformer.tasks.lm import LM

pytestmark = pytest.mark.usefixtures("own_tables")


class Square(Relu):
    """Squares channel by channel."""

    def phi(self, x: torch.Tensor) -> torch.Tensor:
        return x.square()


def rows(*, count: int = 3) -> None:
    """A data set's function."""


def test_an_attention_of_ones_own_is_built_by_name() -> None:
    cosformer.register_attention("square", Square)
    cosformer.register_attention("square", Square)  # the same again is no mistake
    attention = cosformer.build_attention("square", num_heads=2, head_dim=4, max_len=8, causal=True)
    assert type(attention) is Square and attention(*torch.randn(3, 1, 2, 8, 4)).shape == (1, 2, 8, 4)
    with pytest.raises(ValueError, match="there is attention 'softmax' already"):
        cosformer.register_attention("softmax", Square)
    with pytest.raises(ValueError, match="no subclass"):
        cosformer.register_attention("dict", dict)  # pyright: ignore[reportArgumentType]


def test_what_cannot_be_imported_by_name_is_refused() -> None:
    class Local(Square):
        """Of this function alone."""

    with pytest.raises(ValueError, match="at the top of a module"):
        cosformer.register_attention("local-square", Local)


def test_data_sets_and_tasks() -> None:
    cosformer.register_dataset("rows", rows, "three rows")  # pyright: ignore[reportArgumentType]
    cosformer.register_task("my-lm", LM)
    assert dataset_function("rows") is rows and task_class("my-lm") is LM


PLUGIN = """
import dataclasses
import cosformer
from cosformer.recipes import recipe

def mine():
    return dataclasses.replace(recipe("lm-stdlib-small"), recipe="lm-mine")

cosformer.register_recipe("lm-mine", mine)
"""


def test_a_plugin_brings_a_recipe_to_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plugin_of_a_test.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COSFORMER_PLUGINS", "plugin_of_a_test")
    assert cli.main(["list", "recipes"]) == 0 and "lm-mine" in capsys.readouterr().out
    chosen, _, _ = parse("lm-mine", ["--train.steps", "7"])
    assert (chosen.recipe, chosen.train.steps) == ("lm-mine", 7)
    with pytest.raises(ValueError, match="already"):
        cosformer.register_recipe("lm-mine", lambda: recipe("lm-stdlib"))
    monkeypatch.setenv("COSFORMER_PLUGINS", "no_such_plugin")
    with pytest.raises(ValueError, match="COSFORMER_PLUGINS names 'no_such_plugin'"):
        load_plugins()


def test_an_experiments_file_is_a_recipe(tmp_path: Path) -> None:
    plain = recipe("lm-stdlib-small")
    (tmp_path / "experiment.json").write_text(plain.to_json())
    chosen, _, _ = parse(str(tmp_path / "experiment.json"), ["--train.steps", "3"])
    assert chosen.train.steps == 3 and chosen.data == plain.data and chosen.model == plain.model
    with pytest.raises(FileNotFoundError, match=r"none\.json does not exist"):
        parse(str(tmp_path / "none.json"), [])
