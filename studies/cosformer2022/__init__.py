"""The paper's tables, figures, algorithms and claims, on this machine: what is missing is run, what is there is used
again.

Imports public names of cosformer alone. As a plugin (COSFORMER_PLUGINS=studies.cosformer2022) it brings its recipes to
``cosformer train``.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.cosformer2022 import recipes

recipes.register()

PROGRAM = "python -m studies.cosformer2022"
HERE = Path(__file__).parent
RECORDS = HERE / "results"  # runs, rates, gates: what is committed
PLUGIN = "COSFORMER_PLUGINS=studies.cosformer2022"


@dataclass(frozen=True)
class Request:
    """What was asked for. ``runs``: the folder of the runs; what is drawn and listed goes to ``reproduce`` in it.
    ``docs``: where the benchmarks' committed results are. ``records``: the folder of the committed runs. ``write`` and
    ``into``: documents to bring up to date. ``measure``: whether what is missing is measured. ``lengths``, ``batch``,
    ``width``: of table 5; None for the benchmark's own."""

    target: str
    scale: str
    attentions: tuple[str, ...] | None
    seeds: int
    runs: Path
    docs: Path
    records: Path = RECORDS
    write: Path | None = None
    into: Path | None = None
    measure: bool = True
    lengths: tuple[int, ...] | None = None
    batch: int | None = None
    width: int | None = None

    @property
    def out(self) -> Path:
        """The folder for what this target writes."""
        folder = self.runs / "reproduce"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write_lines(self, values: Iterable[dict[str, Any]]) -> Path:
        """One line of JSON each, into the target's file."""
        return write_lines(self.out / f"{self.target}.jsonl", values)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines; none where there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_lines(path: Path, values: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")
    return path
