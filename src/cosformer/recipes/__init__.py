"""Recipes: the paper's experiments, and small ones, as functions that return an :class:`Experiment`; one table."""

from collections.abc import Callable

from cosformer.experiment import Experiment
from cosformer.recipes import evidence, finetune, lm, lra, mlm
from cosformer.recipes.general import GENERAL
from cosformer.suggest import unknown

RECIPES: dict[str, Callable[[], Experiment]] = {
    name: make for family in (lm, mlm, finetune, lra, evidence) for name, make in family.RECIPES.items()
}


def recipe(name: str) -> Experiment:
    """The experiment of recipe ``name``; an unknown name raises and suggests the nearest."""
    if name not in RECIPES:
        raise unknown("recipe", name, [*GENERAL, *RECIPES])
    return RECIPES[name]()
