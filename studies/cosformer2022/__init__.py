"""The paper's tables, figures, algorithms and claims, on this machine: what is missing is run, what is there is used again."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosformer.json_files import write_lines

PROGRAM = "python -m studies.cosformer2022"


@dataclass(frozen=True)
class Request:
    """What was asked of ``python -m studies.cosformer2022``. ``runs``: the folder of the runs; what is drawn and listed goes to ``reproduce`` in it. ``docs``: where the benchmarks'
    committed results are. ``write`` and ``into``: documents to bring up to date, for the ledger. ``measure``: whether
    what is missing is measured. ``lengths``, ``batch``, ``width``: of table 5; None for the benchmark's own."""

    target: str
    scale: str
    attentions: tuple[str, ...] | None
    seeds: int
    runs: Path
    docs: Path
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
        path = self.out / f"{self.target}.jsonl"
        write_lines(path, values)
        return path
