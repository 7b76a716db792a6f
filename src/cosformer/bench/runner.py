"""Runs a benchmark: a module, of this folder or the caller's own, whose ``measurements(**options)`` yields them one by
one.

The runner sets the threads, knows where the numbers come from, writes them as they come, and shows them.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cosformer import machine, terminal
from cosformer.bench.tables import listed
from cosformer.output_file import write_output
from cosformer.report.measurements import DIFFERENCE, Measurement, Results, read_results
from cosformer.report.table import Table, insert

__all__ = [
    "measure",
    "show",
    "tables",
]


def measure(
    module: str,
    options: Mapping[str, Any],
    words: Sequence[str],
    *,
    program: str = "cosformer",
    save: Path | None = None,
    resume: bool = False,
) -> Results:
    """Run the benchmark in ``module``, a dotted name. ``program`` and ``words``: the command as one would type it.

    save: the file that is written whenever an attention is complete, so that an interrupted run is not lost. resume:
    keep what that file holds already.
    """
    import torch

    from cosformer.ops import native

    measurements = import_module(module).measurements
    known = {p.name: p.default for p in inspect.signature(measurements).parameters.values()}
    settings = {key: _plain(value) for key, value in (known | dict(options)).items()}
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    about = machine.describe(settings["threads"]) | {"kernels": native.describe()}
    device = str(settings.get("device", "cpu"))
    if device.startswith("cuda"):
        about["gpu"] = torch.cuda.get_device_name(device)

    def results() -> Results:
        origin = machine.provenance(list(words), program)
        return Results(
            benchmark=module.rpartition(".")[2], machine=about, settings=settings, measurements=tuple(found), **origin
        )

    found: list[Measurement] = []
    if resume:
        found += _kept(save, results())
        options = {**options, "attentions": _left(str(settings["attentions"]), found)}
    for m in measurements(**options):
        if save is not None and found and found[-1].attention != m.attention:
            write_output(save, results().json())
        found.append(m)
        terminal.status(m.what)
    terminal.status("")
    if save is not None:
        write_output(save, results().json())
    return results()


def tables(results: Results, package: str = "cosformer.bench") -> list[Table]:
    """The tables that the benchmark's module declares, the most important first; else a list of measurements."""
    declared = getattr(_module(results, package), "tables", lambda results: [listed("", results.measurements)])
    return [table for table in declared(results) if table.rows]


def blocks(results: Results, package: str = "cosformer.bench") -> dict[str, str]:
    """The parts of the results that documents show, by marker: the first IN_DOCUMENTS tables and ``markers``."""
    module = _module(results, package)
    made = tables(results, package)[: getattr(module, "IN_DOCUMENTS", 1)]
    found = {f"bench {results.benchmark}": "\n\n".join([*(table.markdown for table in made), results.source])}
    return found | getattr(module, "markers", lambda results: {})(results)


def _module(results: Results, package: str) -> Any:
    """The benchmark's module; None where ``package`` has none of its name."""
    name = f"{package}.{results.benchmark}"
    return import_module(name) if results.benchmark.isidentifier() and find_spec(name) else None


def show(results: Results, package: str, *, json: bool, markdown: bool, into: Path | None) -> None:
    """Print the results as ``json``, ``markdown`` or text; or put what documents want of them ``into`` one."""
    found = tables(results, package)
    if json:
        print(results.json(), end="")
    elif markdown:
        print("\n\n".join([*(table.markdown for table in found), results.source]))
    elif into is None:
        print("\n\n".join([*(table.text for table in found), results.source]))
    if into is not None:
        text = into.read_text(encoding="utf-8")
        wanted = {marker: block for marker, block in blocks(results, package).items() if f"<!-- {marker}:" in text}
        if not wanted:
            raise ValueError(
                f"{into} holds none of the markers {', '.join(f'<!-- {x}:start -->' for x in blocks(results, package))}"
            )
        for marker, block in wanted.items():
            text = insert(text, marker, block)
        write_output(into, text)


def compare(old: Results, new: Results, tolerance: float, *, quietly: bool) -> int:
    """Print old and new values; 1 if something got worse by more than ``tolerance``, otherwise 0."""
    before = {m.key: _comparable(m) for m in old.measurements}
    rows, worse = [], 0
    for m in new.measurements:
        a, b = before.get(m.key), _comparable(m)
        if a is None or b is None:
            continue
        better = b / a if m.better == "higher" else a / b
        worse += better < 1 / tolerance
        rows.append([m.what, f"{a:.3g}", f"{b:.3g}", f"{better:.2f}", "worse" if better < 1 / tolerance else ""])
    if not rows:
        raise ValueError("the two results have no row in common; compare runs of the same benchmark and lengths")
    out = sys.stderr if quietly else sys.stdout
    print(
        f"\n{Table('Against the older run (better: above 1)', ['', 'old', 'new', 'better', ''], rows).text}", file=out
    )
    for key in ("cpu", "threads", "torch"):
        if old.machine.get(key) != new.machine.get(key):
            print(f"Note: {key} was {old.machine.get(key)}, is {new.machine.get(key)}", file=out)
    verdict = f"{worse} of {len(rows)} rows got worse by more than {tolerance:g}x."
    print("\n" + terminal.paint(verdict, "red" if worse else "green", out), file=out)
    return 1 if worse else 0


def _comparable(m: Measurement) -> float | None:
    """A positive number to hold against an older run: the value, or the ratio of the two times behind a difference."""
    if m.unit == DIFFERENCE and m.milliseconds and m.baseline_milliseconds:
        return m.milliseconds / m.baseline_milliseconds
    return m.value or None


def _kept(save: Path | None, new: Results) -> tuple[Measurement, ...]:
    """The measurements in the file of an interrupted run; it must be of this run's making."""
    if save is None:
        raise ValueError("--resume needs --json FILE, the file of the run to continue")
    old = read_results(save)
    same = ("cpu", "instructions", "cores", "threads", "torch")
    if old.settings != new.settings or any(old.machine.get(key) != new.machine[key] for key in same):
        raise ValueError(f"{save} is from another machine or other settings; run without --resume")
    return old.measurements


def _left(given: str, found: Sequence[Measurement]) -> str:
    """The attentions that are not measured yet."""
    from cosformer.bench.zoo import names

    return ",".join(name for name in names(given) if name not in {m.attention for m in found})


def _plain(value: Any) -> Any:
    """As JSON has it; of a file it is nobody's business where it lies."""
    if isinstance(value, Path):
        return value.name
    return list(value) if isinstance(value, tuple) else value
