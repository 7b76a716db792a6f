"""The sections about what was measured: exactness, time and memory, where attention lies, claims, and the machine."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from cosformer.lab import numbers as paper
from cosformer.lab.bench import table as bench_table
from cosformer.lab.bench.results import Row, rows_of
from cosformer.lab.render import speed as speed_figures
from cosformer.lab.render.digits import digits_of
from cosformer.lab.render.figure import Figure
from cosformer.lab.render.frequency import frequency_figures
from cosformer.lab.render.html import Html, code, details, gallery, join, paragraph, table, tag, text
from cosformer.lab.render.material import Material
from cosformer.lab.render.trade_off import our_trade_off, paper_trade_off

BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError)
_UNITS = {"memory_gb": "memory (GB)"}
_VERDICTS = {
    "holds here": ("good", "●"),
    "does not hold here": ("bad", "▲"),
    "undecided": ("open", "◐"),
    "not run": ("open", "○"),
}


def summary(material: Material) -> Html:
    """The few numbers to remember, each only if its file is there."""
    made = []
    for tiles in (_speed_tiles, _exactness_tiles, _claim_tiles, _run_tiles):
        found = _guarded(material, "a number of the summary", lambda tiles=tiles: list(tiles(material)))
        made += [tag("div", tag("b", number), tag("span", words), class_="tile") for number, words in found]
    return tag("div", *made, class_="tiles") if made else paragraph("Nothing was measured or trained yet: not run.")


def exactness(material: Material) -> Html:
    if not material.checks:
        return join(
            [
                paragraph(
                    "Not run: ", code("cosformer check --json > RESULTS/check.json"), " measures it.", class_="soft"
                )
            ]
        )
    parts: list[Html] = []
    for name, check in material.checks.items():
        parts += _guarded(material, name, lambda check=check: [*_exactness(check)])
    return join(parts)


def speed(material: Material) -> Html:
    if not material.benches:
        return paragraph(
            "Not run: ", code("cosformer bench attention --json RESULTS/attention.json"), " measures it.", class_="soft"
        )
    parts: list[Html] = []
    known = list(_TITLES)
    for name in sorted(material.benches, key=lambda name: known.index(name) if name in known else len(known)):
        parts += _guarded(material, name, lambda name=name: [_bench(name, material.benches[name])])
    drawn = _guarded(material, "figure 1", lambda: _trade_offs(material))
    return join([*parts, tag("h3", "Score, speed and memory"), gallery(drawn)])


def attention_maps(material: Material) -> Html:
    parts: list[Html] = []
    for name, document in material.frequencies.items():
        parts += _guarded(material, name, lambda document=document: [gallery(frequency_figures(document))])
    return (
        join(parts)
        if parts
        else paragraph("Not run: ", code("cosformer reproduce figure3"), " draws them.", class_="soft")
    )


def claims(material: Material) -> Html:
    if material.ledger is None:
        return paragraph("Not run: ", code("cosformer reproduce ledger"), " tests the paper's claims.", class_="soft")
    lead = paragraph(
        "Each claim of the paper, the small experiment that tests it, and the verdict by a rule fixed before the runs."
    )
    parts = []
    for i, claim in enumerate(material.ledger["claims"], start=1):
        parts += _guarded(material, f"claim {i} of the ledger", lambda claim=claim: [_claim(claim)])
    return join([lead, *parts])


def environment(material: Material) -> Html:
    parts: list[Html] = []
    for machine in material.machines():
        parts.append(table(["machine", ""], [[_UNITS.get(key) or key, value] for key, value in machine.items()]))
    commands = material.commands()
    if commands:
        parts += [tag("h3", "Commands"), tag("ul", *(tag("li", code(command)) for command in commands))]
    if material.outcomes:
        rows = [
            [x.recipe, x.attention, x.seed, x.status, _minutes(x.seconds), code(x.command)] for x in material.outcomes
        ]
        runs = table(["run", "attention", "seed", "status", "time", "command"], rows)
        parts.append(details(f"All {len(rows)} runs and their commands", runs))
    return join(parts) if parts else paragraph("Nothing was run.", class_="soft")


def _guarded(material: Material, name: str, make: Callable[[], list[Any]]) -> list[Any]:
    """What ``make`` gives; when its file turns out broken, nothing, and a line among the problems."""
    try:
        return make()
    except BROKEN as error:
        material.problems.append(f"{name} cannot be shown ({type(error).__name__}: {error})")
        return []


def _speed_tiles(material: Material) -> Iterator[tuple[str, str]]:
    operator = material.benches.get("attention.json", {"rows": []})
    for mode in ("causal", "non-causal"):
        rows = [row for row in rows_of(operator) if row.id.startswith(f"forward/{mode}/") and row.id.endswith("/sdpa")]
        rows = [row for row in rows if row.value is not None and row.unit == "times faster"]
        if rows:
            longest = max(rows, key=lambda row: int(row.id.split("/")[2]))
            n = int(longest.id.split("/")[2])
            yield f"{bench_table.number(longest.value or 0)}×", f"faster than softmax, {mode}, {n:,} tokens"


def _exactness_tiles(material: Material) -> Iterator[tuple[str, str]]:
    for check in material.checks.values():
        worst = max((f["output"] for f in check["exactness"] if f["dtype"] == "float64"), default=math.nan)
        yield _scientific(worst), "largest relative error of any form in float64"


def _claim_tiles(material: Material) -> Iterator[tuple[str, str]]:
    if material.ledger is not None:
        found = [claim.get("outcome") for claim in material.ledger["claims"]]
        outcomes = [outcome for outcome in found if outcome in _VERDICTS]
        held = outcomes.count("holds here")
        others = ", ".join(f"{outcomes.count(x)} {x}" for x in _VERDICTS if x != "holds here" and x in outcomes)
        yield (
            f"{held} of {len(outcomes)}",
            f"claims of the paper hold here ({others})" if others else "claims of the paper hold here",
        )


def _run_tiles(material: Material) -> Iterator[tuple[str, str]]:
    if material.outcomes:
        done = sum(x.status == "done" for x in material.outcomes)
        yield str(done), f"finished runs of {len({x.recipe for x in material.outcomes})} recipes"


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
    rows = [
        [
            f["form"],
            f["backend"],
            f["dtype"],
            f"{f['output']:.0e}",
            f"{f['gradient']:.0e}",
            "yes" if f["passed"] else "no",
        ]
        for f in findings
    ]
    header = ["form", "backend", "dtype", "output", "gradient", "within its limit"]
    yield details(f"All {len(rows)} measurements", table(header, rows))


def _bench(name: str, results: dict[str, Any]) -> Html:
    """One result file: pictures, tables folded away, and where it comes from."""
    rows = rows_of(results)
    kind = rows[0].id.split("/")[0] if rows else ""
    tables = _tables(kind, results, rows)
    parts: list[Html] = [tag("h3", _TITLES.get(name) or name.removesuffix(".json")), gallery(_pictures(kind, results))]
    for i, found in enumerate(tables):
        made = table(found.header, found.rows, found.title)
        unfolded = i == 0 and name in _UNFOLDED and len(found.rows) < 14
        words = found.title or f"All {len(found.rows)} measurements"
        parts.append(made if unfolded else details(words, table(found.header, found.rows)))
    return join([*parts, paragraph(bench_table.source(results).replace("`", ""), class_="source")])


_TITLES = {
    "attention.json": "The operator against softmax and the released way",
    "zoo.json": "Every attention",
    "text.json": "Byte-level text classification",
    "train.json": "Training a language model",
    "wide.json": "Training a wider one",
    "train_zoo.json": "Training with every attention",
    "generate.json": "Generation: a state instead of a cache",
    "peers.json": "Against the packages of the same methods",
    "attention-chunked.json": "The operator without compiled code",
    "attention-chunked-4096.json": "The operator without compiled code, at 4,096 tokens",
    "native.json": "The compiled kernels against what the machine can do",
}
_UNFOLDED = ("attention.json", "text.json", "train.json", "generate.json")  # whose first table is seen at once


def _tables(kind: str, results: dict[str, Any], rows: list[Row]) -> list[bench_table.Table]:
    if kind in ("zoo", "forward"):
        return bench_table.tables(results)
    if kind == "train":
        from cosformer.lab.bench import train

        return train.tables(results)
    if kind == "text":
        from cosformer.lab.bench import text as text_bench

        return text_bench.tables(results)
    body = []
    for row in rows:
        sign = "at least" if row.better == "higher" else "at most"
        goal = "" if row.goal is None else f"{sign} {row.goal:g}"
        body.append([row.what, f"{bench_table.cell(row)} {row.unit}", goal])
    return [bench_table.Table("", ["", "measured", "wanted"], body)]


def _pictures(kind: str, results: dict[str, Any]) -> list[Figure]:
    if kind == "forward":
        found = {tuple(row.id.split("/")[1:3]) for row in rows_of(results) if row.id.startswith("forward/")}
        lengths = {mode: len({n for m, n in found if m == mode}) for mode in ("causal", "non-causal")}
        return [speed_figures.operator_times(results, mode) for mode, count in lengths.items() if count > 1]
    if kind == "zoo":
        found = {tuple(row.id.split("/")[2:]) for row in rows_of(results) if row.by_length}
        wanted = [(mode, what) for mode in ("plain", "causal") for what in ("time", "memory")]
        return [speed_figures.zoo(results, *pair) for pair in wanted if pair in found]
    if kind == "text":
        return [speed_figures.text(results, m, what) for m in ("inference", "training") for what in ("speed", "memory")]
    return []


def _trade_offs(material: Material) -> list[Figure]:
    """Figure 1, ours where there is enough for it, and from the paper's tables."""
    found = (our_trade_off(material.outcomes, results) for results in material.benches.values())
    return [*(figure for figure in found if figure is not None), paper_trade_off()]


def _claim(claim: dict[str, Any]) -> Html:
    style, sign = _VERDICTS[claim["outcome"]]
    given = claim.get("rows", [])
    seeds = ["seeds"] if any("seeds" in row for row in given) else []  # a benchmark has none
    rows = []
    for row in given:
        value = _mean(row["mean"], row.get("error")) if "mean" in row else tag("span", "not run", class_="missing")
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


def _mean(value: float, error: float | None) -> str:
    """To the second digit of the error."""
    if not error:
        return f"{value:g}"
    digits = digits_of(error)
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _scientific(value: float) -> str:
    """2e-15 as 2×10⁻¹⁵."""
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if exponent else ""
    return f"{mantissa}×10{raised}" if raised else mantissa


def _minutes(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 60:.1f} min"
