"""Everything that a report is made from, read once. What cannot be read is named and left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosformer.extras import MissingExtra
from cosformer.json_files import read_object
from cosformer.report.frequency import KIND
from cosformer.report.records import Results, Run, find_runs, read_runs, results_of

REPRODUCED = "reproduce"  # the folder beside the runs into which `python -m studies.cosformer2022` writes
SUMMARY_FILE = "runs.jsonl"
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass
class Material:
    """``benches``: results of ``cosformer bench`` by file name. ``checks``: of ``cosformer check --json``. ``problems`` grows
    while the page is made."""

    runs: list[Run]
    benches: dict[str, Results] = field(default_factory=dict)
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    frequencies: dict[str, dict[str, Any]] = field(default_factory=dict)
    ledger: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)

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
        found += [str(document.get("command", "")) for document in self.frequencies.values()]
        return [command for command in dict.fromkeys(found) if command]


def gather(runs: Sequence[Path], results: Path | None) -> Material:
    """``runs``: run folders, or folders that hold some, and what ``python -m studies.cosformer2022`` drew from them. ``results``: a folder
    of JSON files as in docs/results."""
    folders: list[Path] = []
    for path in runs:
        # a folder that is named and holds no run is a mistake worth a line, here as when it does not exist
        folders += find_runs(path) or [path]
    summary = [results / SUMMARY_FILE] if results is not None and (results / SUMMARY_FILE).exists() else []
    found, problems = read_runs([*dict.fromkeys(folders), *summary])
    material = Material(_once(found), problems=problems)
    if results is not None and not results.is_dir():
        material.problems.append(f"{results} is no folder of results")
    # a file of the results, which somebody chose to keep, comes before one of the same name beside the runs
    beside = [path for folder in runs for path in sorted((folder / REPRODUCED).glob("*.json"))]
    kept = sorted(results.glob("*.json")) if results is not None else []
    for path in {path.name: path for path in [*beside, *kept]}.values():
        _add(material, path)
    return material


def _add(material: Material, path: Path) -> None:
    document = read_object(path, material.problems, required=True)
    if document is None:
        return
    if isinstance(document.get("claims"), list):
        material.ledger = document
    elif document.get("kind") == KIND:
        material.frequencies[path.name] = document
    elif isinstance(document.get("exactness"), list):
        material.checks[path.name] = document
    else:
        try:
            material.benches[path.name] = results_of(document)
        except ValueError as error:
            material.problems.append(f"{path} cannot be used: {error}")


def _once(runs: Sequence[Run]) -> list[Run]:
    """Every run; one that is there as a folder and as a line of the summary, the folder alone."""

    def same(a: Run, b: Run) -> bool:
        return a.path is None and b.path is not None and a.cell == b.cell and a.line()["scores"] == b.line()["scores"]

    return [run for run in runs if not any(same(run, other) for other in runs)]
