"""Support for ``trust_remote_code=True``: a saved model names the file that imports its classes from here."""

import os
import sys
from pathlib import Path
from typing import Any

import transformers

FILE = "modeling_cosformer"


def write_auto_map(
    config: Any, directory: str | os.PathLike, module: str, config_class: str, models: dict[str, str]
) -> None:
    """Put ``auto_map`` into ``config`` and the file it names into ``directory``; ``models``: Auto class -> class of
    ``module``.

    transformers reads the file's imports before it runs it, and names the package where it is not installed.
    """
    config.auto_map = {auto: f"{FILE}.{name}" for auto, name in {"AutoConfig": config_class, **models}.items()}
    names = sorted({config_class, *models.values()})
    lines = "".join(f"    {name},\n" for name in names)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{FILE}.py").write_text(
        f'"""The classes of this model come from the package cosformer: pip install \'cosformer[hf]\'."""\n\n'
        f"from {module} import (  # noqa: F401\n{lines})\n",
        encoding="utf-8",
    )


def publish(made: type) -> None:
    """Make a model class an attribute of ``transformers``, where ``transformers serve`` looks classes up by name.

    Loading a processor replaces that module by a second one of its name, and the server may hold the first.
    """
    server = sys.modules.get("transformers.cli.serving.model_manager")
    for module in (transformers, sys.modules["transformers"], getattr(server, "transformers", transformers)):
        setattr(module, made.__name__, made)
