"""The tables of a benchmark's results. The first of each is the one to look at first."""

import math
from collections.abc import Callable, Iterable, Sequence

from cosformer.report import paper_numbers as paper
from cosformer.report.records import DIFFERENCE, NOT_RUN, Measurement, Results
from cosformer.report.table import Table

NO_SUCH_FORM = "-"  # in a note: the attention has no such mode
OUT_OF_MEMORY = "out of memory"  # so begins the note of a step that does not fit
CROSS = "×"
ZOO_MODES = ("plain", "padded", "causal", "causal padded")
SPREAD = "median of pairs and quartiles"
_Name = Callable[[Measurement], str]


def tables(results: Results) -> list[Table]:
    """All of them; a benchmark that has no table of its own gets a list of its measurements."""
    make = _TABLES.get(results.benchmark)
    found = make(results) if make else [_listed("", results.measurements)]
    return [table for table in found if table.rows]


def blocks(results: Results) -> dict[str, str]:
    """What goes into documents, by marker: the first table (of JAX time and memory), and of the operator where it becomes
    faster than softmax."""
    made = tables(results)
    wanted = made if results.benchmark == "jax" else made[:1]
    found = {f"bench {results.benchmark}": "\n\n".join([*(table.markdown for table in wanted), results.source])}
    if results.benchmark == "attention":
        start = faster_from(results.find(kind="forward", baseline="sdpa"))  # in both modes
        found |= {"faster from": f"{start:,}" if start else "no measured number of", "speed": _short(results).markdown}
    return found


def faster_from(against: Iterable[Measurement]) -> int | None:
    """The length from which on cosFormer is faster than a baseline in all of ``against``, by the lower quartile."""
    run = [m for m in against if m.value is not None]
    slower = [m.length or 0 for m in run if m.unit == DIFFERENCE or (m.low or m.value or 0.0) <= 1]
    faster = [m.length or 0 for m in run if (m.length or 0) > max(slower, default=0)]
    return min(faster, default=None)


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


def _listed(title: str, measurements: Iterable[Measurement]) -> Table:
    rows = [
        [m.what, f"{cell(m)} {'' if m.unit == DIFFERENCE or m.value is None else m.unit}".strip()] for m in measurements
    ]
    return Table(title, ["", "measured"], rows)


def _rest(results: Results, shown: Sequence[Measurement]) -> Table:
    """What the other tables do not show."""
    return _listed(f"Also measured ({SPREAD}).", [m for m in results.measurements if m not in shown])


def _lengths(measurements: Iterable[Measurement]) -> list[int]:
    return sorted({m.length for m in measurements if m.length is not None})


def _operator(results: Results) -> list[Table]:
    """Forward passes, lengths down and baselines across; then the rest."""
    shown = results.find(kind="forward")
    columns = {"sdpa": "SDPA", "authors": "authors' implementation", "limit": "matmul limit"}
    shown.sort(key=lambda m: (m.mode, [*columns].index(m.baseline)))
    title = (
        "Forward pass, float32, one sequence, 8 heads of 64 channels: how many times faster cosFormer is than torch's softmax "
        "attention (SDPA) and than the authors' implementation, and how many times slower than the machine's matrix "
        f"multiplication allows ({SPREAD}; at short lengths the difference in µs)."
    )
    return [_crossed(title, shown, _length, lambda m: f"{m.mode}, {columns[m.baseline]}", "N"), _rest(results, shown)]


def _short(results: Results) -> Table:
    """For the README: long lengths, against SDPA alone."""
    shown = [m for m in results.find(kind="forward", baseline="sdpa") if (m.length or 0) >= 1024]
    title = f"How many times faster than torch's softmax attention, forward, 8 heads of 64 channels ({SPREAD}):"
    return _crossed(title, shown, _length, lambda m: m.mode, "tokens")


def _zoo(results: Results) -> list[Table]:
    """One table per mode: attentions down; milliseconds and MB at each length and their growth across. Then the growth."""
    cells = {(m.kind, m.attention, m.mode, m.length): m for m in results.measurements}
    lengths, names = _lengths(results.measurements), list(dict.fromkeys(m.attention for m in results.measurements))
    factor = f"{lengths[-1] / lengths[-2]:g}x N" if len(lengths) > 1 else "growth"
    header = ["attention", *(f"ms at {n:,}" for n in lengths), f"time at {factor}"]
    header += [*(f"MB at {n:,}" for n in lengths), f"memory at {factor}"]

    def missing(m: Measurement | None) -> str:
        return NO_SUCH_FORM if m is not None and m.note == NO_SUCH_FORM else NOT_RUN

    def found(kind: str, name: str, mode: str) -> list[str]:
        of = [cells.get((kind, name, mode, n)) for n in lengths]
        values = [m and (m.milliseconds if kind == "time" else m.value) for m in of]
        if any(value is None for value in values):
            return [missing(of[-1])] * (len(lengths) + 1)
        numbers = [float(value or 0) for value in values]
        return [*map(number, numbers), _growth(lengths, numbers)]

    made = []
    for mode in ZOO_MODES:
        rows = [[name, *found("time", name, mode), *found("memory", name, mode)] for name in names]
        title = f"{mode.capitalize()} forward, float32, one sequence, 8 heads of 64 channels; memory above the inputs."
        made.append(Table(title, header, rows))
    kinds = [(mode, kind) for mode in ZOO_MODES for kind in ("time", "memory")]
    rows = []
    for name in names:
        grown = [cells.get((f"{kind} growth", name, mode, lengths[-1])) for mode, kind in kinds]
        plain = [cells.get((kind, name, mode, lengths[-1])) for mode, kind in kinds]
        rows.append([name, *(cell(a) if a and a.value else missing(b) for a, b in zip(grown, plain, strict=True))])
    if len(lengths) > 1:
        title = f"Growth from {lengths[-2]:,} to {lengths[-1]:,} tokens ({SPREAD}; linear is {lengths[-1] / lengths[-2]:g})."
        made.append(Table(title, ["attention", *(f"{mode}, {kind}" for mode, kind in kinds)], rows))
    return made


def _growth(lengths: Sequence[int], values: Sequence[float]) -> str:
    """Factor between the two longest lengths, and its exponent in the length."""
    if len(values) < 2 or min(values[-2:]) <= 0:
        return ""
    factor = values[-1] / values[-2]
    return f"{factor:.2f}x (N^{math.log(factor) / math.log(lengths[-1] / lengths[-2]):.2f})"


def _train(results: Results) -> list[Table]:
    """For each width a table by attention and length."""
    shown, tokens, made = results.find(kind="training"), results.settings["tokens"], []

    def speed(milliseconds: float | None) -> str:
        return "" if milliseconds is None else f"{1e3 * tokens / milliseconds:,.0f}"

    for width in sorted({m.width or 0 for m in shown}):
        of_width = [m for m in shown if m.width == width]
        lengths = _lengths(of_width)
        softmax = [next((m.baseline_milliseconds for m in of_width if m.length == n), None) for n in lengths]
        rows = [["softmax", *["1" for _ in lengths], *map(speed, softmax)]]
        for name, backend in dict.fromkeys((m.attention, m.backend) for m in of_width):
            line = [m for n in lengths for m in of_width if (m.attention, m.backend, m.length) == (name, backend, n)]
            label = f"{name} ({backend})" if backend else name
            rows.append([label, *map(cell, line), *(speed(m.milliseconds) for m in line)])
        title = (
            f"Training a language model of 4 layers of width {width} with 4 heads on {tokens:,} tokens a batch: tokens per "
            f"second by length, as a multiple of those with softmax attention (torch's SDPA; {SPREAD}) and as such."
        )
        header = ["attention", *(f"{n:,}" for n in lengths), *(f"tokens/s at {n:,}" for n in lengths)]
        made.append(Table(title, header, rows))
    return [*made, _rest(results, shown)]


def _text(results: Results) -> list[Table]:
    """For each mode our multiples beside the paper's, then steps per second and memory; at the end the orders."""
    memory = {(m.mode, m.length, m.attention): m for m in results.find(kind="memory")}
    speeds = {(m.mode, m.length, m.attention): m for m in results.find(kind="speed")}
    lengths = _lengths(memory.values())
    names = sorted(dict.fromkeys(m.attention for m in memory.values()), key=lambda name: name != "softmax")
    made = []
    for mode in ("inference", "training"):
        compared, absolute = [], []
        for name in names:
            cells = [(n, speeds.get((mode, n, name)), memory[mode, n, name]) for n in lengths]
            label = paper.NAMES.get(name, name)
            compared.append([label, *(x for n, s, m in cells for x in (_ours(s, m), _papers(mode, name, n)))])
            rates = [
                number(1e3 / s.milliseconds) if s is not None and s.milliseconds else _missing(m) for _, s, m in cells
            ]
            absolute.append([label, *rates, *(_missing(m) if m.value is None else number(m.value) for *_, m in cells)])
        title = (
            f"{mode.capitalize()}, steps per second as multiples of the Transformer's: ours ({results.settings['batch']} "
            f"sequences, width {results.settings['width']}, softmax fused by torch) and the paper's (one A6000; {CROSS}: out of "
            "memory, -: the Transformer is)."
        )
        made.append(Table(title, ["", *(f"{n:,} {whose}" for n in lengths for whose in ("ours", "paper"))], compared))
        title = f"{mode.capitalize()}: steps per second, and peak memory above the model itself."
        header = ["", *(f"steps/s at {n:,}" for n in lengths), *(f"MB at {n:,}" for n in lengths)]
        made.append(Table(title, header, absolute))
    orders = [[f"{m.mode}, {m.length:,} bytes, {m.variant}", f"{m.value:.2f}"] for m in results.find(kind="order")]
    return [*made, Table("Agreement with the paper's order of speeds (1: the same order).", ["", "Spearman"], orders)]


def _ours(speed: Measurement | None, memory: Measurement) -> str:
    if speed is None or not speed.milliseconds:
        return _missing(memory)
    return NO_SUCH_FORM if speed.value is None else f"{speed.value:.2f}"


def _papers(mode: str, name: str, n: int) -> str:
    speeds, softmax = paper.TABLE5[mode].get(name, {}), paper.TABLE5[mode]["softmax"].get(n)
    if n not in speeds:
        return ""
    speed = speeds[n]
    if speed is None:
        return CROSS
    return NO_SUCH_FORM if softmax is None else f"{speed / softmax:.2f}"


def _missing(memory: Measurement) -> str:
    return CROSS if memory.note.startswith(OUT_OF_MEMORY) else NOT_RUN


def _generate(results: Results) -> list[Table]:
    """Contexts down; time and state of both attentions across."""
    shown = [*results.find(kind="step"), *results.find(kind="state")]
    rows = [[f"{n:,}", *_token(results, n)] for n in _lengths(results.find(kind="state"))]
    title = (
        "One more token in a model of 2 layers of width 512, cosFormer's state against softmax's key-value cache "
        f"({SPREAD}), and what each carries."
    )
    header = ["context", "ms, cosFormer", "ms, softmax", "times faster, median of pairs"]
    header += ["MB, cosFormer", "MB, softmax", "times smaller"]
    return [Table(title, header, rows), _rest(results, shown)]


def _decode(results: Results) -> list[Table]:
    """Contexts and models down; time and state of a token across."""
    states = results.find(kind="state")
    rows = [[_length(m), m.attention, *_token(results, m.length, attention=m.attention)] for m in states]
    title = f"One more token of a linearized model against {states[0].baseline} ({SPREAD}), and what each carries."
    header = ["context", "model", "ms", "ms, original", "times faster", "MB", "MB, original", "times smaller"]
    return [Table(title, header, rows)]


def _token(results: Results, n: int | None, **which: str) -> list[str]:
    """Milliseconds and megabytes of a token behind ``n`` tokens, ours and the baseline's, each pair with its ratio."""
    step, state = (results.one(kind=kind, length=n, **which) for kind in ("step", "state"))
    assert step is not None and state is not None
    times, sizes = (step.milliseconds, step.baseline_milliseconds), (state.megabytes, state.baseline_megabytes)
    shown = [[f"{x:.3g}" if x < 1000 else f"{x:,.0f}" for x in pair if x is not None] for pair in (times, sizes)]
    return [*shown[0], cell(step), *shown[1], cell(state)]


def _peers(results: Results) -> list[Table]:
    rows = []
    for m in results.measurements:
        name = ", ".join(part for part in (m.attention, m.mode.replace("non-causal", ""), m.variant) if part)
        rows.append([name, m.baseline, cell(m)])
    title = f"Forward pass at 4,096 tokens: time of ours over the package's ({SPREAD}); below 1 ours is faster."
    return [Table(title, ["attention", "package", "measured"], rows)]


def _native(results: Results) -> list[Table]:
    shown = results.find(baseline="limit")
    title = f"Time of the compiled kernels, in multiples of the time that matrix products of as many operations take ({SPREAD})."
    table = _crossed(title, shown, lambda m: f"{m.mode}, N={m.length:,}, {m.variant}", lambda m: m.kind)
    return [table, _rest(results, shown)]


def _jax(results: Results) -> list[Table]:
    memory = results.find(variant="memory")
    times = [m for m in results.measurements if m not in memory]
    title = f"Time of the JAX operator in multiples of the time of others ({SPREAD}); below 1 JAX's is faster."
    lengths, sizes = _lengths(memory), []
    for mode, kind in dict.fromkeys((m.mode, m.kind) for m in memory):
        values = [m.value or 0.0 for n in lengths for m in memory if (m.mode, m.kind, m.length) == (mode, kind, n)]
        sizes.append([f"{mode}, {kind}", *map(number, values), _growth(lengths, values)])
    above = "Memory that XLA allocates for the JAX operator beside its inputs, results included: MB by length, and how it grows."
    above = above if times else f"Times: {NOT_RUN}. {above}"
    return [
        _crossed(title, times, lambda m: f"{m.mode}, {m.kind}, N={m.length:,}", lambda m: m.baseline),
        Table(above, ["", *(f"{n:,}" for n in lengths), "growth"], sizes),
    ]


def _long(results: Results) -> list[Table]:
    """Lengths down, ways to train across: memory, then speed."""
    titles = {
        "memory": "Peak memory of a training step in MB, model, ids, gradients and Adam included (of two processes, the larger).",
        "speed": "Tokens a second of a training step (median and quartiles).",
    }
    shown = [m for m in results.measurements if m.value is not None]
    return [
        _crossed(
            title,
            [m for m in shown if m.kind == kind],
            _length,
            lambda m: f"{m.attention}, {m.mode}",
            "tokens",
            NOT_RUN,
        )
        for kind, title in titles.items()
    ]


def _crossed(
    title: str, shown: Iterable[Measurement], row: _Name, column: _Name, corner: str = "", missing: str = ""
) -> Table:
    """``row`` and ``column`` name a measurement's place; both stand in the order in which they come first."""
    grid = {(row(m), column(m)): cell(m) for m in shown}
    rows, columns = (list(dict.fromkeys(key[i] for key in grid)) for i in (0, 1))
    return Table(title, [corner, *columns], [[x, *(grid.get((x, y), missing) for y in columns)] for x in rows])


def _length(m: Measurement) -> str:
    return f"{m.length:,}"


_TABLES: dict[str, Callable[[Results], list[Table]]] = {
    "attention": _operator,
    "zoo": _zoo,
    "train": _train,
    "long": _long,
    "text": _text,
    "generate": _generate,
    "decode": _decode,
    "peers": _peers,
    "native": _native,
    "jax": _jax,
}
