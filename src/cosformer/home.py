"""The folder of the user in which we keep what can be made again: data, and what was found out about the machine."""

import os
from pathlib import Path


def home() -> Path:
    """``$COSFORMER_HOME``, else ``$XDG_CACHE_HOME/cosformer``, else ``~/.cache/cosformer``."""
    if chosen := os.environ.get("COSFORMER_HOME"):
        return Path(chosen).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG rules say that a relative path is to be ignored
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "cosformer"
