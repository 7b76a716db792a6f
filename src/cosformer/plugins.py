"""Attentions, data sets, tasks and recipes from outside of the package, for the ``cosformer`` command.

A plugin is a module that calls ``cosformer.register_…`` when it is imported. The command imports the entry points of
the group ``cosformer.plugins``, and the modules that the environment variable COSFORMER_PLUGINS names, separated by
commas.
"""

import os
import sys
from importlib import import_module
from typing import Any

GROUP, VARIABLE = "cosformer.plugins", "COSFORMER_PLUGINS"


def load_plugins() -> None:
    """Import them all; one that cannot be imported raises ValueError."""
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        point.load()
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())  # as with `python -m`: a module beside you needs no installation
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise ValueError(f"{VARIABLE} names {name!r}, but there is no module {error.name!r}") from None


def register(what: str, table: dict[str, Any], name: str, value: Any, *more: Any) -> None:
    """Add ``value``, a module-level class or function, to a table of ``name -> (module, attribute, ...)``."""
    if getattr(sys.modules.get(value.__module__), value.__qualname__, None) is not value:
        raise ValueError(
            f"{what} {name!r}: define {value.__qualname__} at the top of a module, where it can be imported"
        )
    entry = (value.__module__, value.__qualname__, *more)
    if table.setdefault(name, entry) != entry:
        raise ValueError(f"there is {what} {name!r} already; choose another name")
