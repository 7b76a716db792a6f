"""``records.json``: what a run's records were when they were written. An edited setting or a changed digit is told by
it.

The settings in effect are kept as values, ``experiment.json`` being compared with them, and each other record by its
size and hash. While a record is replaced the hashes of both versions stand here, so that a kill in between raises no
false alarm.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from cosformer import json_files
from cosformer.output_file import write_output

RECORDS_FILE = "records.json"
_EXPERIMENT, _METRICS, _RESULT = "experiment.json", "metrics.jsonl", "result.json"
_AS_WRITTEN = "is not as the run wrote it"

State = dict[str, Any] | None  # {"size", "sha256"} of a file; None: it is not there


class RecordsFile:
    """That of the folder ``run``; ``problem`` says what is wrong with it. Runs of earlier versions have none."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.settings: dict[str, Any] | None = None
        self.changes: list[dict[str, Any]] = []  # of settings on the way: {"update", "settings": {name: [old, new]}}
        self.notes: list[str] = []  # what was found altered, and went on from
        self.files: dict[str, list[State]] = {}
        self.problem = ""
        try:
            found = json_files.loads((run / RECORDS_FILE).read_text(encoding="utf-8"))
            if found.pop("sha256") != _digest(found) or not _is_valid(found):
                raise ValueError
            self.settings, self.changes, self.notes = found["settings"], found["changes"], found["notes"]
            self.files = found["files"]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.problem = (
                f"{run / RECORDS_FILE} is damaged: nothing tells whether the run's records are as it wrote them"
            )

    def altered(self) -> list[str]:
        """What does not agree, one sentence each."""
        found = [self.problem, *self.notes, self.edited()]
        return [text for text in [*found, *(self.disagreement(name) for name in self.files)] if text]

    def edited(self) -> str:
        """The settings that experiment.json names and the run does not have; empty: none."""
        if self.settings is None:
            return ""
        path = self.run / _EXPERIMENT
        now = json_files.read_object(path, [], required=False)
        if now == self.settings:
            return ""
        found = differences(self.settings, now or {})
        said = ", ".join(f"{name} is {json.dumps(new)}, was {json.dumps(old)}" for name, (old, new) in found.items())
        return f"{path} {_AS_WRITTEN}" + (f": {said}" if now else "")

    def disagreement(self, name: str) -> str:
        """What is wrong with the record ``name``; empty: nothing, or nothing is known of it."""
        known = self.files.get(name)
        if known is None:
            return ""
        path = self.run / name
        if not path.exists():
            return "" if None in known else f"{path} is missing"
        sizes = {int(state["size"]) for state in known if state is not None}
        size = path.stat().st_size
        # a running run may have been killed between a line and its hash: lines may follow
        grows = name == _METRICS and not any(self.files.get(_RESULT, []))
        with open(path, "rb") as file:
            for length in sizes:
                if size == length or (grows and size > length):
                    file.seek(0)
                    if {"size": length, "sha256": hashlib.sha256(file.read(length)).hexdigest()} in known:
                        return ""
        return f"{path} {_AS_WRITTEN}"

    def write(self, name: str, text: str | None) -> None:
        """Replace the record ``name``; None: remove it."""
        content = None if text is None else text.encode()
        state = None if content is None else {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        before = self.files.get(name) or ([None] if not (self.run / name).exists() else [_state(self.run / name)])
        self.files[name] = [*before, state]
        self.save()
        if content is None:
            (self.run / name).unlink(missing_ok=True)
        else:
            write_output(self.run / name, content)
        self.files[name] = [state]
        self.save()

    def grown(self, name: str, size: int, sha256: str) -> None:
        """The record ``name`` is longer now. Called often: the system writes it to the disk when it likes."""
        self.files[name] = [{"size": size, "sha256": sha256}]
        self.save(sync=False)

    def save(self, *, sync: bool = True) -> None:
        values = {"settings": self.settings, "changes": self.changes, "notes": self.notes, "files": self.files}
        text = json.dumps(values | {"sha256": _digest(values)}, ensure_ascii=False, indent=1) + "\n"
        path = self.run / RECORDS_FILE
        if sync:
            write_output(path, text)
        else:
            fresh = path.with_name(f".{RECORDS_FILE}.new")
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, path)


def _is_valid(values: dict[str, Any]) -> bool:
    """Whether every value is of its kind: a file that was made by hand can have the right digest."""
    files: dict[str, list[State]] = values["files"]
    return (
        isinstance(values["settings"], dict | None)
        and all(isinstance(change, dict) for change in values["changes"])
        and all(isinstance(note, str) for note in values["notes"])
        and all(Path(name).name == name for name in files)
        and all(
            state is None or (type(state["size"]) is int and isinstance(state["sha256"], str))
            for states in files.values()
            for state in states
        )
    )


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _state(path: Path) -> State:
    content = path.read_bytes()
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By dotted name."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= {f"{name}.{inner}": both for inner, both in differences(a, b).items()}
        elif a != b:
            found[name] = (a, b)
    return found
