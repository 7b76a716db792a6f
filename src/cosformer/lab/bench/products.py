"""``cosformer bench products``: our products of many rows with a small weight against torch's, as a linear layer runs them.

Rows: ``products/<rows>/<channels in>x<channels out>/<forward|update>``, ours over torch's time. A goal stands where
:func:`cosformer.ops.projection.takes` says that models use ours: there it must be faster.
"""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cosformer import terminal
from cosformer.lab.bench import output

if TYPE_CHECKING:
    from cosformer.lab.bench.results import Row
    from cosformer.lab.bench.table import Table

MARKER = "bench products"
ROWS = (1024, 4096, 16384)
SHAPES = ((32, 32), (64, 64), (128, 128), (256, 256), (256, 1024), (1024, 256), (512, 512), (512, 2048), (1024, 1024))
QUICK_ROWS, QUICK_SHAPES = (4096,), ((64, 64), (128, 128))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A linear layer with bias, float32: the time of our products over torch's, forward alone and with all gradients, the two "
        "taking turns; below 1 ours is faster. Wanted where models use ours. Run it on a quiet machine."
    )
    add = parser.add_argument
    add("--rows", type=output.whole_numbers, metavar="N,N,...", help=f"default: {','.join(map(str, ROWS))}")
    add("--threads", type=output.positive, default=2, help="default: %(default)s")
    add("--repeats", type=output.positive, default=11, help="of each timing (default: %(default)s)")
    add("--quick", action="store_true", help="few rows, small weights: seconds")
    output.add_options(parser, MARKER)


def run(args: argparse.Namespace) -> int:
    return output.show(args, MARKER, measure, tables)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark that ``args`` describe."""
    import torch

    from cosformer import allocator, machine
    from cosformer.lab.bench.results import document
    from cosformer.ops.native.library import loaded

    loaded()  # without the library there is nothing to measure: says why
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    kept = allocator.keep_freed_memory()  # as `cosformer train` does
    about = machine.describe(args.threads)
    many = args.rows or (QUICK_ROWS if args.quick else ROWS)
    shapes = QUICK_SHAPES if args.quick else SHAPES
    rows = [row for m in many for k, n in shapes for row in shape_rows(m, k, n, repeats=args.repeats)]
    terminal.status("")
    words = ["bench", "products", *(["--rows", ",".join(map(str, args.rows))] if args.rows else [])]
    words += ["--quick"] if args.quick else []
    settings = {"repeats": args.repeats, "dtype": "float32", "allocator": allocator.describe(kept)}
    return document(rows, about, machine.provenance(words), settings)


def shape_rows(m: int, k: int, n: int, *, repeats: int) -> Iterator["Row"]:
    """Forward, and an update: forward with the gradients of rows, weight and bias."""
    from functools import partial

    import torch
    import torch.nn.functional as F

    from cosformer.lab.bench.measure import interleaved, ratio
    from cosformer.lab.bench.results import Row, measured
    from cosformer.ops.projection import project_natively, takes

    terminal.status(f"{m:,} rows of {k} channels to {n} ...")
    x, w, b = (torch.randn(*shape, requires_grad=True) for shape in ((m, k), (n, k), (n,)))
    g = torch.randn(m, n)

    def forward(linear: Any) -> None:
        with torch.no_grad():
            linear(x, w, b)

    def update(linear: Any) -> None:
        torch.autograd.grad(linear(x, w, b), (x, w, b), g)

    for what, action in (("forward", forward), ("update", update)):
        times = interleaved(
            {"ours": partial(action, project_natively), "torch": partial(action, F.linear)}, repeats=repeats
        )
        text = f"{m:,} rows of {k} channels to {n}, {what}"
        goal = 1.0 if takes(x, w, b) else None
        row = Row(f"products/{m}/{k}x{n}/{what}", text, "times torch's", "lower", goal=goal)
        yield measured(row, ratio(times["ours"], times["torch"]))


def tables(results: dict[str, Any]) -> "list[Table]":
    """By weight and rows, then what is wanted and reached."""
    from cosformer.lab.bench.results import rows_of
    from cosformer.lab.bench.table import Table, cell, goals

    rows = rows_of(results)
    cells = {tuple(row.id.split("/")[1:]): row for row in rows}
    many = list(dict.fromkeys(int(m) for m, _, _ in cells))
    body = []
    for shape in dict.fromkeys(shape for _, shape, _ in cells):
        keys = [(str(m), shape, what) for m in many for what in ("forward", "update")]
        body.append([" to ".join(shape.split("x")), *(cell(cells.get(key)) for key in keys)])
    header = ["channels", *(f"{m:,} rows, {what}" for m in many for what in ("forward", "update"))]
    title = (
        "A linear layer: our products' time over torch's, forward and with all gradients (median and quartiles; below 1 ours "
        "is faster)."
    )
    wanted = [row for row in rows if row.goal is not None]
    found = [Table(title, header, body)]
    return [*found, goals(wanted, "Where models use our products.")] if wanted else found
