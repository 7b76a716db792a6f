"""Everything that a report is made from, read once. What cannot be read is named and left out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosformer.lab.bench.results import rows_of
from cosformer.lab.records import find_runs
from cosformer.lab.render.frequency import KIND
from cosformer.lab.render.outcomes import Outcome, read_outcomes

REPRODUCED = "reproduce"  # the folder beside the runs into which `cosformer reproduce` writes


@dataclass
class Material:
    """``benches``: documents of ``cosformer bench`` by file name. ``checks``: of ``cosformer check --json``. ``problems``
    grows while the page is made."""

    outcomes: list[Outcome]
    benches: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    frequencies: dict[str, dict[str, Any]] = field(default_factory=dict)
    ledger: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)

    def machines(self) -> list[dict[str, Any]]:
        """Each machine once, without what changes from minute to minute, by the fullest description of it."""
        found = [m.get("machine") or {} for m in self.benches.values()] + [x.machine for x in self.outcomes]
        lean = [{k: v for k, v in machine.items() if k not in ("load", "threads")} for machine in found if machine]
        once = [machine for i, machine in enumerate(lean) if machine not in lean[:i]]
        return [m for m in once if not any(m.items() < other.items() for other in once)]

    def commands(self) -> list[str]:
        """What measured and drew, each once; a run's command stands with the run."""
        found = ["cosformer check --json"] if self.checks else []
        found += [str(d.get("command", "")) for d in (*self.benches.values(), *self.frequencies.values())]
        return [command for command in dict.fromkeys(found) if command]


def gather(runs: Sequence[Path], results: Path | None) -> Material:
    """``runs``: run folders, or folders that hold some, and what ``cosformer reproduce`` drew from them. ``results``: a folder
    of JSON files as in docs/results."""
    folders: list[Path] = []
    for path in runs:
        inside = find_runs(path)
        # a folder that is named and holds no run is a mistake worth a line, here as when it does not exist
        folders += inside or [path]
    outcomes, problems = read_outcomes(list(dict.fromkeys(folders)), results)
    material = Material(outcomes, problems=problems)
    if results is not None and not results.is_dir():
        material.problems.append(f"{results} is no folder of results")
    # a file of the results, which somebody chose to keep, comes before one of the same name beside the runs
    beside = [path for folder in runs for path in sorted((folder / REPRODUCED).glob("*.json"))]
    kept = sorted(results.glob("*.json")) if results is not None else []
    for path in {path.name: path for path in [*beside, *kept]}.values():
        _add(material, path)
    return material


def _add(material: Material, path: Path) -> None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        material.problems.append(f"{path} cannot be read: {error}")
        return
    if isinstance(document, dict) and isinstance(document.get("claims"), list):
        material.ledger = document
    elif isinstance(document, dict) and document.get("kind") == KIND:
        material.frequencies[path.name] = document
    elif isinstance(document, dict) and isinstance(document.get("exactness"), list):
        material.checks[path.name] = document
    elif isinstance(document, dict) and isinstance(document.get("rows"), list):
        try:
            rows_of(document)
        except TypeError as error:
            material.problems.append(f"{path} cannot be used: {error}")
        else:
            material.benches[path.name] = document
    else:
        material.problems.append(f"{path} is none of the results that are known here")
