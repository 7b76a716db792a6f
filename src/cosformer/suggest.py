"""Names that are not there: an error at once, with the nearest that is."""

from collections.abc import Iterable
from pathlib import Path


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a ``name`` that is no ``what``: it suggests the nearest of ``known``, or lists them."""
    known = list(known)
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
    return ValueError(f"unknown {what} {name!r}; {hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name in ``known`` that ``name`` is a typo or prefix of; None if there is none."""
    known = list(known)
    edits = {each: _edits(name, each) for each in known}
    close = min(edits, key=edits.__getitem__, default=None)
    if close is not None and edits[close] <= max(1, len(name) // 4):  # any more, and `export` suggests `report`
        return close
    long_enough = (each for each in known if min(len(each), len(name)) > 2)
    return next((each for each in long_enough if each.startswith(name) or name.startswith(each)), None)


def _edits(a: str, b: str) -> int:
    """How many letters must be added, dropped, replaced or swapped with their neighbour to turn ``a`` into ``b``."""
    before, last = [], list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (x != y)))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def check_model_path(name: str) -> None:
    """A name that looks like a path (``runs/lm``, ``./model``) must be there and a folder: no hub is asked for it.

    Names on a hub are ``model`` or ``owner/model``; one whose first part is a folder here is meant as a path.
    """
    path = Path(name).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError(f"{name} is a file; a model is a folder: a run, or what save_pretrained wrote")
    parts = path.parts
    on_a_hub = len(parts) <= 2 and not name.startswith((".", "/", "~")) and not name.endswith("/")
    if path.exists() or (on_a_hub and not (len(parts) == 2 and (Path(parts[0]).is_dir() or parts[0] == "runs"))):
        return
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, siblings)
    hint = f"did you mean {path.parent / near}?" if near else "`cosformer runs` lists the runs that are here"
    raise FileNotFoundError(f"{name} does not exist; {hint}")
