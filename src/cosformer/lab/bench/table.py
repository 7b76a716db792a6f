"""Tables of benchmark results, for a terminal or as Markdown, and the way of the latter into a document."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cosformer import terminal
from cosformer.lab.bench.results import DIFFERENCE, Change, Row, rows_of


class Table(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


def tables(results: dict[str, Any]) -> list[Table]:
    """The tables of a result document: the operator's, or the zoo's."""
    rows = rows_of(results)
    if of_the_zoo(rows):
        return _zoo_tables(rows)
    return [table for table in (_by_length(rows), _goals(rows)) if table.rows]


def of_the_zoo(rows: Sequence[Row]) -> bool:
    """Whether these are attentions by length, not the operator."""
    return any(row.id.startswith("zoo/") for row in rows)


def as_text(found: Sequence[Table]) -> str:
    return "\n\n".join(f"{t.title}\n\n{terminal.table(t.header, t.rows)}" for t in found)


def as_markdown(results: dict[str, Any], found: Sequence[Table] | None = None) -> str:
    """Every table (of ``bench attention``, unless ``found`` has others), and where the numbers come from."""
    parts = []
    for title, header, rows in tables(results) if found is None else found:
        rule = ["---", *["---:"] * (len(header) - 1)]
        parts.append("\n".join([title + "\n", *(f"| {' | '.join(line)} |" for line in [header, rule, *rows])]))
    return "\n\n".join([*parts, source(results)])


def source(results: dict[str, Any]) -> str:
    """Command, date and machine of a result, in one sentence."""
    m = results["machine"]
    commit = f", commit {results['commit']}" if results.get("commit") else ""
    return (
        f"Measured with `{results['command']}` on {results['date']}{commit}: {m['cpu']} ({m['instructions']}), "
        f"{m['cores']} cores, {m['threads']} threads, {m['system']}, Python {m['python']}, torch {m['torch']}."
    )


def insert(text: str, name: str, block: str) -> str:
    """``text`` with ``block`` between the markers ``<!-- name:start -->`` and ``<!-- name:end -->``."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"the document must hold the markers {start} and {end} once each")
    before, rest = text.split(start)
    return f"{before}{start}\n{block}\n{end}{rest.split(end)[1]}"


def changes_table(changes: Sequence[Change], tolerance: float) -> Table:
    """Old against new; ``old/new`` in the direction in which above 1 is better."""
    rows = []
    for change in changes:
        verdict = "worse" if change.worse > tolerance else ""
        rows.append([change.row.what, f"{change.old:.3g}", f"{change.new:.3g}", f"{1 / change.worse:.2f}", verdict])
    return Table("Against the older run (better: above 1)", ["", "old", "new", "better", ""], rows)


def _by_length(rows: list[Row]) -> Table:
    """Forward passes: lengths down, baselines across."""
    cells = {tuple(row.id.split("/")[1:]): row for row in rows if row.id.startswith("forward/")}
    lengths = sorted({int(key[1]) for key in cells})
    columns = [("sdpa", "SDPA"), ("released", "released way"), ("limit", "matmul limit")]
    kinds = [(mode, *column) for mode in ("causal", "non-causal") for column in columns]
    kinds = [kind for kind in kinds if any((kind[0], str(n), kind[1]) in cells for n in lengths)]
    body = [[f"{n:,}", *(cell(cells.get((mode, str(n), key))) for mode, key, _ in kinds)] for n in lengths]
    title = (
        "Forward pass, float32, one sequence, 8 heads of 64 channels: how many times faster cosFormer is than torch's SDPA "
        "and than the released way of computing, and how many times slower than the machine's matrix multiplication allows "
        "(median and quartiles)."
    )
    return Table(title, ["N", *(f"{mode}, {label}" for mode, _, label in kinds)], body)


def _goals(rows: list[Row]) -> Table:
    """Rows that have a goal, and those that are no forward pass; of the short lengths only the worst."""
    short = [row for row in rows if row.goal is not None and row.id.startswith("forward/") and _length(row) <= 256]
    kept = [row for row in rows if row not in short and (row.goal is not None or not row.id.startswith("forward/"))]
    for unit in dict.fromkeys(row.unit for row in short):
        same = [row for row in short if row.unit == unit]
        pick = max if same[0].better == "lower" else min
        worst = pick(same, key=lambda row: row.value or 0.0)
        lengths = sorted({_length(row) for row in same})
        span = f"{lengths[0]} to {lengths[-1]} tokens" if len(lengths) > 1 else f"{lengths[0]} tokens"
        kept.insert(0, replace(worst, what=f"{span}, worst of both modes: {worst.what}"))
    return goals(kept, "What the operator is meant to reach on two cores.")


def goals(rows: Sequence[Row], title: str) -> Table:
    """What was measured, wanted and reached."""
    body = []
    for row in rows:
        sign = "at least" if row.better == "higher" else "at most"
        goal = "" if row.goal is None else f"{sign} {row.goal:g}"
        unit = "" if row.unit == DIFFERENCE else row.unit
        body.append([row.what, f"{cell(row)} {unit}".strip(), goal, {None: "", True: "yes", False: "no"}[row.met]])
    return Table(title, ["", "measured", "wanted", "reached"], body)


def _length(row: Row) -> int:
    return int(row.id.split("/")[2])


def cell(row: Row | None) -> str:
    """The value and its quartiles."""
    if row is None:
        return ""
    if row.value is None or row.low is None or row.high is None:
        return "not run"
    if row.unit == DIFFERENCE:
        return f"{row.value:+.0f} µs ({row.low:+.0f} to {row.high:+.0f})"
    if row.low == row.high:
        return number(row.value)
    return f"{number(row.value)} ({number(row.low)} to {number(row.high)})"


def number(value: float) -> str:
    """As many digits as a measurement has."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _zoo_tables(rows: list[Row]) -> list[Table]:
    """One table per mode: attentions down; milliseconds and MB at each length and their growth across. Then the goals."""
    from cosformer.lab.bench.zoo import MODES

    cells = {tuple(row.id.split("/")[1:]): row for row in rows}
    lengths = sorted({int(n) for row in rows for n in row.by_length})
    names = list(dict.fromkeys(key[0] for key in cells))
    factor = f"{lengths[-1] / lengths[-2]:g}x N" if len(lengths) > 1 else "growth"
    header = ["attention", *(f"ms at {n:,}" for n in lengths), f"time at {factor}"]
    header += [*(f"MB at {n:,}" for n in lengths), f"memory at {factor}"]
    found = []
    for mode in MODES:
        body = []
        for name in names:
            kinds = [cells.get((name, mode, kind)) for kind in ("time", "memory")]
            body.append([name, *(text for row in kinds for text in _zoo_cells(row, lengths))])
        title = f"{mode.capitalize()} forward, float32, one sequence, 8 heads of 64 channels; memory above the inputs."
        found.append(Table(title, header, body))
    goals = _zoo_goals(cells, names, lengths)
    return [*found, goals] if goals.rows else found


def _zoo_cells(row: Row | None, lengths: list[int]) -> list[str]:
    from cosformer.lab.bench.zoo import NO_SUCH_FORM, growth

    if row is None or row.value is None:
        return [NO_SUCH_FORM if row is not None and row.note == NO_SUCH_FORM else "not run"] * (len(lengths) + 1)
    grown = growth(row)
    factor = "" if grown is None else f"{grown[0]:.2f}x (N^{grown[1]:.2f})"
    return [*(number(row.by_length[str(n)]) for n in lengths), factor]


def _zoo_goals(cells: dict[tuple[str, ...], Row], names: list[str], lengths: list[int]) -> Table:
    """Attentions that are to grow with the length alone: growth in each mode, and whether all of them do."""
    from cosformer.lab.bench.zoo import GOAL, MODES, NO_SUCH_FORM

    kinds = [(mode, kind) for mode in MODES for kind in ("time growth", "memory growth")]
    body = []
    for name in names:
        found = [cells.get((name, *kind)) for kind in kinds]
        wanted = [row for row in found if row is not None and row.note != NO_SUCH_FORM]
        if not any(row.goal is not None for row in wanted):
            continue
        shown = [NO_SUCH_FORM if row is not None and row.note == NO_SUCH_FORM else cell(row) for row in found]
        body.append([name, *shown, "yes" if all(row.met for row in wanted) else "no"])
    title = "Growth" if len(lengths) < 2 else f"Growth from {lengths[-2]:,} to {lengths[-1]:,} tokens"
    header = ["attention", *(f"{mode}, {kind.removesuffix(' growth')}" for mode, kind in kinds), "reached"]
    return Table(f"{title}: at most {GOAL:g} times the time and the memory (median and quartiles).", header, body)
