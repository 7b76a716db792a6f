"""``metrics.jsonl``: one JSON object a line, cut back to the checkpoint from which a run is resumed."""

import hashlib
import json
from pathlib import Path
from typing import Any

from cosformer import json_files
from cosformer.experiment import METRICS_FILE
from cosformer.records_file import RecordsFile


class Metrics:
    """Appends lines to the file of ``run`` and notes its hash; ``write=False`` on all but the first process."""

    def __init__(self, run: Path, records: RecordsFile | None = None, *, write: bool = True) -> None:
        self.path, self.write = run / METRICS_FILE, write
        self.records = records or RecordsFile(run)
        self._begin()

    def add(self, **values: Any) -> None:
        if self.write:
            line = (json.dumps(values) + "\n").encode()
            with open(self.path, "ab") as file:
                file.write(line)
            self._hash.update(line)
            self._size += len(line)
            self.records.grown(METRICS_FILE, self._size, self._hash.hexdigest())

    def cut(self, step: int) -> None:
        """Drop what was written after update ``step``, and a last line that was cut short."""
        if self.write and self.path.exists():
            kept = [line for line in read_lines(self.path) if line["step"] <= step]
            self.records.write(METRICS_FILE, "".join(json.dumps(line) + "\n" for line in kept))
            self._begin()

    def _begin(self) -> None:
        content = self.path.read_bytes() if self.write and self.path.exists() else b""
        self._size, self._hash = len(content), hashlib.sha256(content)

    def best(self, metric: str, name: str, higher_is_better: bool) -> dict[str, Any] | None:
        """The evaluation ``name`` with the best ``metric``: {"step", "score"}; the earliest of equals. A test split
        chooses nothing: of its evaluations the last."""
        found = [m for m in read_lines(self.path) if m["kind"] == "eval" and m.get("name") == name and _has(m, metric)]
        if name == "test":
            found = found[-1:]
        sign = -1 if higher_is_better else 1
        line = min(found, key=lambda m: (sign * m["scores"][metric], m["step"]), default=None)
        return None if line is None else {"step": line["step"], "score": line["scores"][metric]}


def _has(line: dict[str, Any], metric: str) -> bool:
    scores = line.get("scores")
    return isinstance(scores, dict) and isinstance(scores.get(metric), int | float)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that can be read, none where there is no file; a process killed while writing leaves half a line."""
    return [line for _, line in json_files.read_lines(path)[0] if type(line.get("step")) is int and "kind" in line]
