"""``cosformer bench text``: the paper's table 5 and figure 1, speed and memory on byte-level text classification.

Rows, ``<mode>`` being inference or training: ``text/<mode>/<length>/<attention>``, times the Transformer's steps per second,
with the milliseconds of a step of each; ``text/memory/<mode>/<length>/<attention>``, peak MB above the model itself;
``text/order/<mode>/<length>``, Spearman's rank correlation of our speeds with the paper's.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cosformer import terminal
from cosformer.lab import numbers as paper
from cosformer.lab.bench import output

if TYPE_CHECKING:
    from cosformer.lab.bench.results import Row
    from cosformer.lab.bench.table import Table

LENGTHS = (1000, 2000, 3000, 4000)
QUICK_LENGTHS = (250, 500)
WIDTH, BATCH = 256, 2
MODES = ("inference", "training")
MARKER = "bench text"
BASELINE = "softmax"
CROSS = "×"
PAPER_ATTENTIONS = tuple(paper.TABLE5["training"])
_WARM = 64
_BUDGET = 30.0  # seconds of one length's repeats, once there are three


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Steps per second and peak memory of the Long-Range Arena's text model (4 layers, 4 heads; no dropout) on random bytes "
        "of full length, beside the paper's, both as multiples of the Transformer's. Ours is torch's fused softmax attention, "
        "which needs no N x N matrix. The attentions take turns; run it on a quiet machine. Needs cosformer[hf]."
    )
    add = parser.add_argument
    add("--attentions", default=",".join(PAPER_ATTENTIONS), metavar="NAME,...|all", help="default: those of the table")
    add("--lengths", type=output.whole_numbers, metavar="N,N,...", help=f"default: {','.join(map(str, LENGTHS))}")
    add("--batch", type=output.positive, default=BATCH, help="sequences (default: %(default)s; the paper's is 32)")
    add("--width", type=output.positive, default=WIDTH, help="default: %(default)s")
    add("--threads", type=output.positive, default=2, help="default: %(default)s")
    add("--repeats", type=output.positive, default=5, help="of each timing (default: %(default)s); long ones stop at 3")
    add(
        "--memory-limit",
        type=float,
        metavar="GB",
        help=f"above it a step counts as {CROSS} (default: 70 %% of what is free)",
    )
    add("--quick", action="store_true", help="short lengths, three repeats")
    output.add_options(parser, MARKER)


def run(args: argparse.Namespace) -> int:
    return output.show(args, MARKER, measure, tables)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark that ``args`` describe."""
    from cosformer.extras import require

    require("hf", "transformers")
    import torch

    from cosformer import machine
    from cosformer.lab.bench import results
    from cosformer.lab.bench.zoo import names

    chosen = names(args.attentions)
    lengths = args.lengths or (QUICK_LENGTHS if args.quick else LENGTHS)
    repeats = min(args.repeats, 3) if args.quick else args.repeats
    limit = int(1e9 * args.memory_limit) if args.memory_limit else int(0.7 * machine.memory("MemAvailable"))
    sizes = {"batch": args.batch, "width": args.width, "memory": limit}
    torch.set_num_threads(args.threads)
    about = machine.describe(args.threads)
    rows = list(memory_rows(chosen, lengths, threads=args.threads, **sizes))
    crossed = {tuple(row.id.split("/")[2:]) for row in rows if row.value is None}
    for n in lengths:
        fitting = [name for name in chosen if not any((mode, str(n), name) in crossed for mode in MODES)]
        rows += speed_rows(n, fitting, repeats=repeats, **sizes)
    rows += [row for mode in MODES for n in lengths for row in order_rows(mode, n, rows)]
    terminal.status("")
    settings = {"repeats": repeats, "batch": args.batch, "width": args.width, "dropout": 0, "optimizer": "Adam"}
    settings |= {"memory_limit_gb": round(limit / 1e9, 1)}
    return results.document(rows, about, machine.provenance(_command(args)), settings)


def memory_rows(
    chosen: Sequence[str], lengths: Sequence[int], *, batch: int, width: int, memory: int, threads: int
) -> Iterator["Row"]:
    """Peaks of each attention, measured in a fresh process."""
    from cosformer.lab.bench.measure import in_fresh_process, spread
    from cosformer.lab.bench.results import Row, measured

    terminal.status(f"memory of {', '.join(chosen)} ...")
    arguments = {"names": list(chosen), "lengths": list(lengths), "batch": batch, "width": width, "memory": memory}
    try:
        found = in_fresh_process("cosformer.lab.bench.text:peaks", threads, **arguments)
    except RuntimeError as error:
        if len(chosen) > 1:  # find out which it was
            for name in chosen:
                yield from memory_rows([name], lengths, batch=batch, width=width, memory=memory, threads=threads)
            return
        found = [(chosen[0], mode, n, f"not run: {error}") for n in lengths for mode in MODES]
    for name, mode, n, peak in found:
        what = f"{name}, {mode}, {n:,} bytes: peak memory above the model"
        row = Row(f"text/memory/{mode}/{n}/{name}", what, "MB", "lower")
        yield replace(row, note=peak) if isinstance(peak, str) else measured(row, spread([peak / 1e6]))


def peaks(
    names: list[str], lengths: list[int], batch: int, width: int, memory: int
) -> list[tuple[str, str, int, int | str]]:
    """Runs in a fresh process: (attention, mode, length, peak bytes above the model, or why there are none)."""
    from cosformer.lab.bench.measure import limited_memory, peak_above_now
    from cosformer.lab.bench.steps import inference_step, reason, training_step

    kinds = {"inference": inference_step, "training": training_step}
    found = []
    for name in names:
        for kind in kinds.values():
            kind(*text_model(name, _WARM, batch, width))()  # libraries that load at the first call are no memory of it
        for n in lengths:
            for mode, kind in kinds.items():
                try:
                    step = kind(*text_model(name, n, batch, width))
                    with limited_memory(memory):
                        found.append((name, mode, n, peak_above_now(step)))
                except (ValueError, RuntimeError, MemoryError) as error:
                    found.append((name, mode, n, reason(error, memory)))
    return found


def speed_rows(n: int, chosen: Sequence[str], *, batch: int, width: int, memory: int, repeats: int) -> Iterator["Row"]:
    """Both modes at length ``n``; the attentions take turns."""
    from cosformer.lab.bench.measure import interleaved, ratio, spread
    from cosformer.lab.bench.results import Row, measured
    from cosformer.lab.bench.steps import attempt, inference_step, training_step

    for mode, kind in (("inference", inference_step), ("training", training_step)):
        actions, notes = {}, {}
        for name in chosen:
            terminal.status(f"{mode} of {name} at {n:,} bytes ...")
            step, notes[name] = attempt(lambda name=name, kind=kind: kind(*text_model(name, n, batch, width)), memory)
            if step is not None:
                actions[name] = step
        times = interleaved(actions, repeats=repeats, budget=_BUDGET, warm=True)
        for name in chosen:
            what = f"{name}, {mode}, {n:,} bytes: steps per second over the Transformer's"
            row = Row(f"text/{mode}/{n}/{name}", what, "times the Transformer", "higher", note=notes[name])
            if name in times:
                shown = [x for x in (name, BASELINE) if x in times]
                row = replace(row, milliseconds={x: float(f"{1e3 * spread(times[x]).median:.4g}") for x in shown})
            if name in times and BASELINE in times:
                row = measured(row, ratio(times[BASELINE], times[name]))
            yield row


def order_rows(mode: str, n: int, rows: Sequence["Row"]) -> Iterator["Row"]:
    """How well our order of speeds agrees with the paper's at length ``n``, where both have at least three."""
    from cosformer.lab.bench.results import Row

    theirs = {name: speeds.get(n) for name, speeds in paper.TABLE5[mode].items()}
    pairs = []
    for row in rows:
        _, kind, *rest = row.id.split("/")
        name = rest[-1]
        speed = theirs.get(name)
        if kind == mode and rest[0] == str(n) and name in row.milliseconds and speed is not None:
            pairs.append((1 / row.milliseconds[name], speed))
    if len(pairs) < 3:
        return
    found = round(statistics.correlation(*map(_ranks, zip(*pairs, strict=True))), 3)
    what = f"{mode}, {n:,} bytes: rank correlation of the speeds of {len(pairs)} attentions with the paper's"
    yield Row(f"text/order/{mode}/{n}", what, "rank correlation", "higher", found, found, found)


def _ranks(values: Sequence[float]) -> list[int]:
    ordered = sorted(values)
    return [ordered.index(value) for value in values]


def text_model(name: str, n: int, batch: int, width: int) -> tuple[Any, dict[str, Any]]:
    """The text model with attention ``name`` and random bytes of full length."""
    import torch

    from cosformer.models.classification import CosformerForSequenceClassification
    from cosformer.models.presets import lra_text

    torch.manual_seed(0)
    sizes = {
        "hidden_size": width,
        "head_dim": width // 4,
        "intermediate_size": 4 * width,
        "classifier_sizes": [4 * width],
    }
    config = lra_text(attention=name, max_position_embeddings=n + 1, hidden_dropout_prob=0.0, **sizes)
    ids = torch.randint(1, 257, (batch, n))
    return CosformerForSequenceClassification(config), {"input_ids": ids, "labels": torch.randint(0, 2, (batch,))}


def tables(results: dict[str, Any]) -> "list[Table]":
    """For each mode our multiples beside the paper's, then steps per second and memory; at the end the orders."""
    from cosformer.lab.bench.results import rows_of
    from cosformer.lab.bench.table import Table, number

    rows = {row.id: row for row in rows_of(results)}
    keys = [row_id.split("/") for row_id in rows]
    lengths = sorted({int(key[3]) for key in keys if key[1] == "memory"})
    names = list(dict.fromkeys(key[4] for key in keys if key[1] == "memory"))
    names.sort(key=lambda name: name != BASELINE)
    batch, width = results["settings"]["batch"], results["settings"]["width"]
    found = []
    for mode in MODES:
        of_mode = {
            name: [(rows.get(f"text/{mode}/{n}/{name}"), rows[f"text/memory/{mode}/{n}/{name}"]) for n in lengths]
            for name in names
        }
        header = ["", *(f"{n:,} {whose}" for n in lengths for whose in ("ours", "paper"))]
        body = []
        for name, cells in of_mode.items():
            line = [paper.NAMES.get(name, name)]
            for n, (speed, memory) in zip(lengths, cells, strict=True):
                line += [_ours(speed, memory), _papers(mode, name, n)]
            body.append(line)
        title = (
            f"{mode.capitalize()}, steps per second as multiples of the Transformer's: ours ({batch} sequences, width {width}, "
            f"softmax fused by torch) and the paper's (one A6000; {CROSS}: out of memory, -: the Transformer is)."
        )
        found.append(Table(title, header, body))
        header = ["", *(f"steps/s at {n:,}" for n in lengths), *(f"MB at {n:,}" for n in lengths)]
        body = []
        for name, cells in of_mode.items():
            speeds = [
                _missing(m) if s is None or not s.milliseconds else number(1e3 / s.milliseconds[name]) for s, m in cells
            ]
            sizes = [_missing(m) if m.value is None else number(m.value) for _, m in cells]
            body.append([paper.NAMES.get(name, name), *speeds, *sizes])
        found.append(
            Table(f"{mode.capitalize()}: steps per second, and peak memory above the model itself.", header, body)
        )
    orders = [[row.what, f"{row.value:.2f}"] for key, row in rows.items() if key.startswith("text/order/")]
    title = "Agreement with the paper's order of speeds (1: the same order)."
    return [*found, Table(title, ["", "Spearman"], orders)] if orders else found


def _ours(speed: "Row | None", memory: "Row") -> str:
    if speed is None or not speed.milliseconds:
        return _missing(memory)
    return "-" if speed.value is None else f"{speed.value:.2f}"


def _papers(mode: str, name: str, n: int) -> str:
    speeds, baseline = paper.TABLE5[mode].get(name, {}), paper.TABLE5[mode][BASELINE].get(n)
    if n not in speeds:
        return ""
    speed = speeds[n]
    if speed is None:
        return CROSS
    return "-" if baseline is None else f"{speed / baseline:.2f}"


def _missing(memory: "Row") -> str:
    from cosformer.lab.bench.steps import OUT_OF_MEMORY

    return CROSS if memory.note.startswith(OUT_OF_MEMORY) else "not run"


def _command(args: argparse.Namespace) -> list[str]:
    """The options that shape the numbers, as they would be typed."""
    words = ["bench", "text"]
    if args.lengths:
        words += ["--lengths", ",".join(map(str, args.lengths))]
    defaults = {"attentions": ",".join(PAPER_ATTENTIONS), "batch": BATCH, "width": WIDTH, "threads": 2, "repeats": 5}
    defaults |= {"memory_limit": None}
    for name, default in defaults.items():
        if getattr(args, name) != default:
            words += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    return [*words, "--quick"] if args.quick else words
