"""The sections about what was measured: exactness, time and memory, attention maps, and the machine."""

from collections.abc import Iterator
from typing import Any

from cosformer.report import result_figures
from cosformer.report.figure import Figure
from cosformer.report.heat_maps import MAPS_FILE, layer_maps
from cosformer.report.html import Html, code, details, gallery, join, paragraph, table, tag
from cosformer.report.material import Material
from cosformer.report.measurements import Results

_UNITS = {"memory_gb": "memory (GB)"}


def exactness(material: Material) -> Html:
    parts: list[Html] = []
    for name, check in material.checks.items():
        parts += material.guarded(name, lambda check=check: [*_exactness(check)])
    return join(parts)


def speed(material: Material) -> Html:
    if not material.benches:
        return Html("")
    parts: list[Html] = []
    known = list(_TITLES)
    for name in sorted(material.benches, key=lambda name: known.index(name) if name in known else len(known)):
        parts += material.guarded(name, lambda name=name: [_bench(material, name, material.benches[name])])
    return join(parts)


def attention_maps(material: Material) -> Html:
    parts: list[Html] = []
    for run in material.runs:
        if run.path and (run.path / MAPS_FILE).is_file():
            shown = material.guarded(str(run.path / MAPS_FILE), lambda path=run.path: layer_maps(path / MAPS_FILE))
            parts += [tag("h3", f"{run.name}, on one text"), gallery(shown)] if shown else []
    return join(parts)


def environment(material: Material) -> Html:
    parts: list[Html] = []
    for machine in material.machines():
        parts.append(table(["machine", ""], [[_UNITS.get(key) or key, value] for key, value in machine.items()]))
    commands = material.commands()
    if commands:
        parts += [tag("h3", "Commands"), tag("ul", *(tag("li", code(command)) for command in commands))]
    return join(parts)


def _exactness(check: dict[str, Any]) -> Iterator[Html]:
    findings = check["exactness"]
    passed = all(f["passed"] for f in findings)
    worst = {
        d: max(f["output"] for f in findings if f["dtype"] == d) for d in dict.fromkeys(f["dtype"] for f in findings)
    }
    words = ", ".join(f"{value:.0e} in {dtype}" for dtype, value in worst.items())
    verdict = "Every form is within its limit" if passed else "NOT every form is within its limit"
    yield paragraph(
        f"{verdict}: the linear form is the definition, rearranged. Largest relative error of an output: {words}."
    )
    rows = []
    for f in findings:
        errors = [f"{f[what]:.0e}" for what in ("output", "gradient")]
        rows.append([f["form"], f["backend"], f["dtype"], *errors, "yes" if f["passed"] else "no"])
    header = ["form", "backend", "dtype", "output", "gradient", "within its limit"]
    yield details(f"All {len(rows)} measurements", table(header, rows))


def _bench(material: Material, name: str, results: Results) -> Html:
    """One result file: pictures, tables folded away, and where it comes from."""
    parts: list[Html] = [tag("h3", _TITLES.get(name) or name.removesuffix(".json"))]
    parts.append(gallery(material.guarded(name, lambda: _pictures(results))))
    for i, found in enumerate(material.tables(results)):
        unfolded = i == 0 and name in _UNFOLDED and len(found.rows) < 14
        words = found.title or f"All {len(found.rows)} measurements"
        parts.append(found.html if unfolded else details(words, table(found.header, found.rows)))
    return join([*parts, paragraph(results.source.replace("`", ""), class_="source")])


_TITLES = {
    "attention.json": "The operator against softmax and the authors' implementation",
    "zoo.json": "Every attention",
    "text.json": "Byte-level text classification",
    "train.json": "Training a language model",
    "wide.json": "Training a wider one",
    "train_zoo.json": "Training with every attention",
    "generate.json": "Generation: a state instead of a cache",
    "peers.json": "Against the packages of the same methods",
    "attention-chunked.json": "The operator without compiled code",
    "native.json": "The compiled kernels against what the machine can do",
}
_UNFOLDED = ("attention.json", "text.json", "train.json", "generate.json")  # whose first table is seen at once


def _pictures(results: Results) -> list[Figure]:
    if results.benchmark == "attention":
        found = {mode: {m.length for m in results.find(kind="forward", mode=mode)} for mode in ("causal", "non-causal")}
        return [result_figures.operator_times(results, mode) for mode, lengths in found.items() if len(lengths) > 1]
    if results.benchmark == "zoo":
        wanted = [(mode, kind) for mode in ("plain", "causal") for kind in ("time", "memory")]
        return [result_figures.zoo(results, mode, kind) for mode, kind in wanted if results.find(mode=mode, kind=kind)]
    return []
