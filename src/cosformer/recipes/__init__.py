"""Recipes: the paper's experiments, and small ones, as functions that return an :class:`Experiment`; one table."""

from collections.abc import Callable

from cosformer.experiment import Experiment
from cosformer.recipes import finetune, lm, lra, mlm
from cosformer.recipes.general import GENERAL
from cosformer.suggest import unknown

__all__ = [
    "RECIPES",
    "recipe",
    "register_recipe",
]

RECIPES: dict[str, Callable[[], Experiment]] = {
    name: make for family in (lm, mlm, finetune, lra) for name, make in family.RECIPES.items()
}


def recipe(name: str) -> Experiment:
    """The experiment of recipe ``name``; an unknown name raises and suggests the nearest."""
    if name not in RECIPES:
        raise unknown("recipe", name, [*GENERAL, *RECIPES])
    return RECIPES[name]()


def register_recipe(name: str, make: Callable[[], Experiment]) -> None:
    """Register a recipe as ``name``; ``make`` returns an experiment whose ``recipe`` is the same name."""
    if RECIPES.setdefault(name, make) is not make or name in GENERAL:
        raise ValueError(f"there is a recipe {name!r} already; choose another name")
