"""Everything that a report is made from, read once. What cannot be read is named and left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosformer.extras import MissingExtra
from cosformer.json_files import read_object
from cosformer.report.measurements import Results, results_of
from cosformer.report.table import Table
from cosformer.runs import Run, find_runs, read_runs

_BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass
class Material:
    """``benches``: results of ``cosformer bench`` by file name. ``checks``: of ``cosformer check --json``. ``problems`` grows
    while the page is made."""

    runs: list[Run]
    benches: dict[str, Results] = field(default_factory=dict)
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    tables: Callable[[Results], list[Table]] = lambda results: []

    def guarded(self, name: str, make: Callable[[], list[Any]]) -> list[Any]:
        """What ``make`` gives; nothing, and a line among the problems, when its file turns out broken or it cannot be drawn."""
        try:
            return make()
        except _BROKEN as error:
            self.problems.append(f"{name} cannot be shown ({type(error).__name__}: {error})")
        except MissingExtra as error:
            words = f"the pictures cannot be drawn: {' '.join(str(error).split())}"
            self.problems += [] if words in self.problems else [words]
        return []

    def machines(self) -> list[dict[str, Any]]:
        """Each machine once, without what changes from minute to minute, by the fullest description of it."""
        found = [m.machine for m in self.benches.values()] + [x.machine for x in self.runs]
        lean = [{k: v for k, v in machine.items() if k not in ("load", "threads")} for machine in found if machine]
        once = [machine for i, machine in enumerate(lean) if machine not in lean[:i]]
        return [m for m in once if not any(m.items() < other.items() for other in once)]

    def commands(self) -> list[str]:
        """What measured and drew, each once; a run's command stands with the run."""
        found = ["cosformer check --json"] if self.checks else []
        found += [results.command for results in self.benches.values()]
        return [command for command in dict.fromkeys(found) if command]


def gather(runs: Sequence[Path], results: Path | None, tables: Callable[[Results], list[Table]]) -> Material:
    """``runs``: run folders, or folders that hold some. ``results``: a folder of JSON files as in docs/results."""
    folders: list[Path] = []
    for path in runs:
        # a folder that is named and holds no run is a mistake worth a line, here as when it does not exist
        folders += find_runs(path) or [path]
    found, problems = read_runs(dict.fromkeys(folders))
    material = Material(found, problems=problems, tables=tables)
    if results is not None and not results.is_dir():
        material.problems.append(f"{results} is no folder of results")
    for path in sorted(results.glob("*.json")) if results is not None else ():
        _add(material, path)
    return material


def _add(material: Material, path: Path) -> None:
    document = read_object(path, material.problems, required=True)
    if document is None:
        return
    if isinstance(document.get("exactness"), list):
        material.checks[path.name] = document
    else:
        try:
            material.benches[path.name] = results_of(document)
        except ValueError as error:
            material.problems.append(f"{path} cannot be used: {error}")
