"""The sections about what was measured: exactness, time and memory, where attention lies, claims, and the machine."""

from collections.abc import Iterator
from typing import Any

from cosformer.report import paper_numbers as paper
from cosformer.report import result_figures
from cosformer.report.bench_tables import tables
from cosformer.report.figure import Figure
from cosformer.report.frequency import frequency_figures
from cosformer.report.heat_maps import MAPS_FILE, layer_maps
from cosformer.report.html import Html, code, details, gallery, join, paragraph, table, tag, text
from cosformer.report.material import Material
from cosformer.report.records import Results, with_error
from cosformer.report.result_figures import our_trade_off, paper_trade_off
from cosformer.report.summary import HOLDS

_UNITS = {"memory_gb": "memory (GB)"}
_VERDICTS = {HOLDS: ("good", "●"), "does not hold here": ("bad", "▲"), "undecided": ("open", "◐")}  # others: open, ○


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
    drawn = material.guarded("figure 1", lambda: _trade_offs(material))
    return join([*parts, tag("h3", "Score, speed and memory"), gallery(drawn)])


def attention_maps(material: Material) -> Html:
    parts: list[Html] = []
    for name, document in material.frequencies.items():
        parts += material.guarded(name, lambda document=document: [gallery(frequency_figures(document))])
    for run in material.runs:
        if run.path and (run.path / MAPS_FILE).is_file():
            shown = material.guarded(str(run.path / MAPS_FILE), lambda path=run.path: layer_maps(path / MAPS_FILE))
            parts += [tag("h3", f"{run.name}, on one text"), gallery(shown)] if shown else []
    return join(parts)


def claims(material: Material) -> Html:
    if material.ledger is None:
        return Html("")
    lead = paragraph(
        "Each claim of the paper, the small experiment that tests it, and the verdict by a rule fixed before the runs."
    )
    parts = []
    for i, claim in enumerate(material.ledger["claims"], start=1):
        parts += material.guarded(f"claim {i} of the ledger", lambda claim=claim: [_claim(claim)])
    return join([lead, *parts])


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
    for i, found in enumerate(tables(results)):
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
    if results.benchmark == "text":
        return [
            result_figures.text(results, m, what) for m in ("inference", "training") for what in ("speed", "memory")
        ]
    return []


def _trade_offs(material: Material) -> list[Figure]:
    """Figure 1, ours where there is enough for it, and from the paper's tables."""
    speeds = (results for results in material.benches.values() if results.benchmark == "text")
    found = (our_trade_off(material.runs, results) for results in speeds)
    return [*(figure for figure in found if figure is not None), paper_trade_off()]


def _claim(claim: dict[str, Any]) -> Html:
    style, sign = _VERDICTS.get(claim["outcome"], ("open", "○"))
    given = claim.get("rows", [])
    seeds = ["seeds"] if any("seeds" in row for row in given) else []  # a benchmark has none
    rows = []
    for row in given:
        value = with_error(row["mean"], row.get("error")) if "mean" in row else tag("span", "not run", class_="missing")
        rows.append([paper.NAMES.get(row["attention"]) or row["attention"], value, *(row.get(x, "") for x in seeds)])
    numbers = table(["attention", claim.get("unit", "mean"), *seeds], rows) if rows else Html("")
    command = paragraph(code(claim["command"]), class_="source") if claim.get("command") else Html("")
    parts = [
        tag("span", f"{sign} {claim['outcome']}", class_=f"verdict {style}"),
        tag("h3", claim["says"]),
        paragraph(f"{claim['where'][:1].upper()}{claim['where'][1:]}. Tested by {claim['test']}.", class_="soft"),
        paragraph(claim["reason"]) if claim.get("reason") else Html(""),
        details("Numbers and command", numbers, command) if rows else command,
    ]
    return tag("div", *map(text, parts), class_="claim")
