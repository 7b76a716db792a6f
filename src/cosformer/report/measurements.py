"""Measurements of the benchmarks: typed values, read from and written to JSON files."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cosformer.json_files import loads
from cosformer.runs import NOT_RUN

__all__ = [
    "DIFFERENCE",
    "Measurement",
    "Results",
    "cell",
    "number",
    "read_results",
    "results_of",
]

DIFFERENCE = "µs more"  # the unit of a measurement that is a difference of two times


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One number of a benchmark: ``value`` in ``unit``, median and quartiles. None: not measured, and ``note`` says
    why.

    kind: what was timed or sized (forward, backward, training, memory, step …). mode: causal, non-causal, padded; of a
    whole model inference or training. baseline: what the value is a multiple of. variant: what else tells two of them
    apart. milliseconds, megabytes: of the attention itself, and of the baseline.
    """

    kind: str
    attention: str = ""
    mode: str = ""
    length: int | None = None
    width: int | None = None
    batch: int | None = None
    backend: str = ""
    dtype: str = ""
    baseline: str = ""
    variant: str = ""
    unit: str
    better: Literal["higher", "lower"]
    value: float | None = None
    low: float | None = None
    high: float | None = None
    milliseconds: float | None = None
    baseline_milliseconds: float | None = None
    megabytes: float | None = None
    baseline_megabytes: float | None = None
    note: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """The same in every run of the benchmark."""
        return tuple(getattr(self, name) for name in _KEY)

    @property
    def what(self) -> str:
        """What was measured, in one line for people."""
        name = f"{self.attention} ({self.backend})" if self.backend else self.attention
        parts = [" ".join(part for part in (name, self.mode, self.kind) if part)]
        parts += [f"N={self.length:,}"] if self.length is not None else []
        parts += [f"width {self.width}"] if self.width is not None else []
        parts += [f"{self.batch} sequences"] if (self.batch or 1) > 1 else []
        parts += [part for part in (self.dtype, self.variant) if part]
        return ", ".join([*parts, f"against {self.baseline}"] if self.baseline else parts)

    def line(self) -> dict[str, Any]:
        """As it is written: without the fields that say nothing."""
        return {name: value for name, value in vars(self).items() if value not in (None, "")}


_KEY = ("kind", "attention", "mode", "length", "width", "batch", "backend", "dtype", "baseline", "variant")


@dataclass(frozen=True)
class Results:
    """The measurements of one benchmark (a name of ``cosformer bench``, or "zoo"), and where they come from."""

    benchmark: str
    command: str
    date: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    measurements: tuple[Measurement, ...]
    commit: str | None = None

    def find(self, **wanted: Any) -> list[Measurement]:
        """Those with these fields, as ``find(kind="forward", mode="causal", baseline="sdpa")``."""
        return [m for m in self.measurements if all(getattr(m, name) == value for name, value in wanted.items())]

    def one(self, **wanted: Any) -> Measurement | None:
        """The first of :meth:`find`."""
        return next(iter(self.find(**wanted)), None)

    @property
    def source(self) -> str:
        """Command, date and machine, in one sentence."""
        m = self.machine
        commit = f", commit {self.commit}" if self.commit else ""
        return (
            f"Measured with `{self.command}` on {self.date}{commit}: {m['cpu']} ({m['instructions']}), {m['cores']} "
            f"cores, {m['threads']} threads, {m['system']}, Python {m['python']}, torch {m['torch']}."
        )

    def json(self) -> str:
        """As it is written to a file: one measurement a line."""
        head = {name: value for name, value in vars(self).items() if name != "measurements" and value is not None}
        lines = ",\n  ".join(json.dumps(m.line(), ensure_ascii=False) for m in self.measurements)
        return f'{json.dumps(head, indent=1, ensure_ascii=False)[:-2]},\n "measurements": [\n  {lines}\n ]\n}}\n'


def read_results(path: Path) -> Results:
    """A file that ``cosformer bench … --json`` wrote."""
    try:
        return results_of(loads(path.read_text(encoding="utf-8")))
    except ValueError as error:  # no UTF-8, no JSON, or other JSON
        raise ValueError(f"{path} is no benchmark result ({error}); give a file that --json wrote") from None


def results_of(document: Any) -> Results:
    """Raises a ValueError that says what is wrong with ``document``."""
    if not isinstance(document, dict) or not isinstance(document.get("measurements"), list):
        raise ValueError("it holds no measurements")
    try:
        found = tuple(Measurement(**one) for one in document["measurements"])
        return Results(**{**document, "measurements": found})
    except TypeError as error:
        raise ValueError(str(error)) from None


def cell(m: Measurement) -> str:
    """The value and its quartiles."""
    if m.value is None:
        return NOT_RUN
    if m.unit == DIFFERENCE:
        return f"{m.value:+.0f} µs ({m.low:+.0f} to {m.high:+.0f})"
    if m.low is None or m.high is None or m.low == m.high:
        return number(m.value)
    return f"{number(m.value)} ({number(m.low)} to {number(m.high)})"


def number(value: float) -> str:
    """As many digits as a measurement has."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
