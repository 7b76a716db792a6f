"""Names that are not there: an error at once, with the nearest that is."""

import difflib
from collections.abc import Iterable
from pathlib import Path


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a ``name`` that is no ``what``: it suggests the nearest of ``known``, or lists them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return ValueError(f"unknown {what} {name!r}; {hint}")


def check_model_path(name: str) -> None:
    """A name that looks like a path (``runs/lm``, ``./model``) must be there: no hub is asked for it.

    Names on a hub are ``model`` or ``owner/model``; one whose first part is a folder here is meant as a path.
    """
    path = Path(name).expanduser()
    parts = path.parts
    on_a_hub = len(parts) <= 2 and not name.startswith((".", "/", "~")) and not name.endswith("/")
    if path.exists() or (on_a_hub and not (len(parts) == 2 and (Path(parts[0]).is_dir() or parts[0] == "runs"))):
        return
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.5)
    hint = f"did you mean {path.parent / near[0]}?" if near else "`cosformer runs` lists the runs that are here"
    raise FileNotFoundError(f"{name} does not exist; {hint}")
