"""What the model benchmarks share on the command line: their options for results, and the results' way out."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cosformer.lab.bench.table import Table


def add_options(parser: argparse.ArgumentParser, marker: str) -> None:
    add = parser.add_argument
    add("--json", metavar="FILE", help="write the results there; '-' prints them instead of tables")
    add("--read", type=Path, metavar="FILE", help="show the results in FILE, measure nothing")
    add("--markdown", action="store_true", help="print Markdown tables")
    add("--into", type=Path, metavar="FILE", help=f"put the Markdown between FILE's '{marker}' markers")


def show(
    args: argparse.Namespace,
    marker: str | Callable[[dict[str, Any]], str],
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    tables: Callable[[dict[str, Any]], "list[Table]"],
) -> int:
    """Measure, or read, and write as ``args`` say; the markers may depend on what was measured."""
    from cosformer.lab.bench import results, table

    found = results.read(args.read) if args.read else measure(args)
    if args.json == "-":
        print(json.dumps(found, indent=1))
    elif args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.into:
        text = args.into.read_text(encoding="utf-8")
        marker = marker if isinstance(marker, str) else marker(found)
        args.into.write_text(table.insert(text, marker, table.as_markdown(found, tables(found))), encoding="utf-8")
    elif args.markdown:
        print(table.as_markdown(found, tables(found)))
    elif args.json != "-":
        print(f"{table.as_text(tables(found))}\n\n{table.source(found)}")
    return 0


def whole_numbers(text: str) -> tuple[int, ...]:
    """``"512,2048"``, for argparse."""
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas, like 1024,4096") from None
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers start at 1")
    return found


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1")
    return int(text)
