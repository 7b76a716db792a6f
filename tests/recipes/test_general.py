"""General recipes: complete experiments from a summary, the same whenever they are made again."""

import dataclasses

import pytest

from cosformer.data.summary import Summary
from cosformer.experiment import DataConfig, from_json
from cosformer.recipes import RECIPES
from cosformer.recipes.general import GENERAL, LONGEST, example
from cosformer.tasks import TASKS

SMALL = Summary({"train": 80, "valid": 10}, 4_000, 40, 90, ("a", "b"))
LARGE = Summary({"train": 1_000_000, "valid": 10_000}, 500_000_000, 400, 90_000, ("a", "b"))


@pytest.mark.parametrize("name", GENERAL)
def test_a_general_recipe_is_a_complete_value(name: str) -> None:
    data, options, make = GENERAL[name]
    for summary in (SMALL, LARGE):
        for start in (None, "runs/before"):
            if name == "seq2seq" and start is not None:
                continue
            found = make(summary, DataConfig(data, options | {"path": "x"}), start)
            assert (
                from_json(found.to_json()) == found == make(summary, DataConfig(data, options | {"path": "x"}), start)
            )
            assert found.recipe == name and found.task in TASKS and found.data.length and found.start == start
            assert 200 <= found.train.steps <= 20_000 and found.train.warmup < found.train.steps
            assert (found.model.num_hidden_layers is None) == (start is not None), "of a start the sizes are its own"
    small, large = (make(summary, DataConfig(data, options), None) for summary in (SMALL, LARGE))
    assert (small.model.hidden_size or 0) < (
        large.model.hidden_size or 0
    ) and small.data.length < large.data.length <= LONGEST
    assert name not in RECIPES, "the frozen recipes need no data to be complete"


def test_what_was_asked_for_stays() -> None:
    data = DataConfig("table", {"path": "x"}, length=77, long="windows")
    found = GENERAL["classify"][2](LARGE, data, None)
    assert found.data == data == dataclasses.replace(found.data)


@pytest.mark.parametrize("name", GENERAL)
def test_the_example_says_that_it_is_one(name: str) -> None:
    assert "--data PATH" in example(name).note
