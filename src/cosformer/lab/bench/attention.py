"""``cosformer bench attention``: the operator against its baselines, or the attentions of the zoo against the length."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosformer import terminal

LENGTHS = (1, 8, 32, 63, 64, 128, 256, 1024, 4096, 16384)
QUICK_LENGTHS = (8, 64, 256, 1024, 4096)
ZOO_LENGTHS = (1024, 2048, 4096, 8192)
QUICK_ZOO_LENGTHS = (512, 1024)
MARKER, ZOO_MARKER = "bench attention", "bench zoo"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Every number is a ratio within one run, the median of repeats that take turns, with its quartiles. Two threads, "
        "float32, one sequence, 8 heads of 64 channels. Run it on a quiet machine."
    )
    add = parser.add_argument
    add("--lengths", type=_lengths, metavar="N,N,...", help=f"default: {','.join(map(str, LENGTHS))}")
    add("--attentions", metavar="NAME,...|all", help="measure these of the zoo instead, time and memory by length")
    add("--backend", default="auto", help="backend of the operator (default: auto)")
    add("--threads", type=_positive, default=2, help="default: %(default)s")
    add("--repeats", type=_positive, default=9, help="of each timing (default: %(default)s); long ones stop at 3")
    add("--quick", action="store_true", help="fewer lengths and repeats: a minute instead of several")
    add("--json", metavar="FILE", help="write the results there; '-' prints them instead of tables")
    add("--resume", action="store_true", help="with --attentions: keep what an interrupted run wrote to --json FILE")
    add("--read", type=Path, metavar="FILE", help="show the results in FILE, measure nothing")
    add("--markdown", action="store_true", help="print Markdown tables")
    add(
        "--into",
        type=Path,
        metavar="FILE",
        help=f"put the Markdown between FILE's '{MARKER}' (or '{ZOO_MARKER}') markers",
    )
    add("--compare", type=Path, metavar="OLD.json", help="print old against new; exit code 1 if a row got slower")
    add("--tolerance", type=float, default=1.25, help="by more than this factor (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    from cosformer.lab.bench import results, table

    if args.tolerance < 1:
        raise ValueError(f"--tolerance {args.tolerance}: a factor of at least 1")
    old = results.read(args.compare) if args.compare else None
    new = results.read(args.read) if args.read else measure(args)
    if args.json == "-":
        print(json.dumps(new, indent=1))
    elif args.json:
        _write(new, Path(args.json))
    if args.into:
        text = args.into.read_text(encoding="utf-8")
        marker = ZOO_MARKER if table.of_the_zoo(results.rows_of(new)) else MARKER
        args.into.write_text(table.insert(text, marker, table.as_markdown(new)), encoding="utf-8")
    out = sys.stderr if args.json == "-" else sys.stdout
    if args.markdown:
        print(table.as_markdown(new), file=out)
    elif args.json != "-" and not args.into:
        print(f"{table.as_text(table.tables(new))}\n\n{table.source(new)}")
    return 0 if old is None else _compare(old, new, args.tolerance, out)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark that ``args`` describe."""
    import torch

    from cosformer import machine
    from cosformer.lab.bench import results

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    about = machine.describe(args.threads)
    settings: dict[str, Any] = {
        "quick": args.quick,
        "repeats": args.repeats,
        "backend": args.backend,
        "batch": 1,
        "heads": 8,
        "channels": 64,
    }
    found: list[Any] = []
    if args.attentions is not None:
        from cosformer.lab.bench import zoo

        settings |= {"lengths": list(_zoo_lengths(args)), "protocol": zoo.PROTOCOL}
        found = _kept(args, about, settings)
    by_whom = machine.provenance(_command(args))
    for row in _rows(args, {row.id for row in found}):
        found.append(row)
        # the zoo takes minutes: an interrupted run is not lost
        if args.attentions is not None and args.json not in (None, "-"):
            _write(results.document(found, about, by_whom, settings), Path(args.json))
    terminal.status("")
    return results.document(found, about, by_whom, settings)


def _rows(args: argparse.Namespace, known: set[str]) -> Iterator[Any]:
    """The rows still to be measured."""
    repeats = min(args.repeats, 3) if args.quick else args.repeats
    if args.attentions is None:
        from cosformer.lab.bench import operator
        from cosformer.ops.backends import available_backends

        if args.resume:
            raise ValueError("--resume goes on with a run of --attentions; the operator's is short: run it again")
        backends = ["auto", *available_backends()]
        if args.backend not in backends:
            raise ValueError(f"--backend {args.backend} does not run here; there are: {', '.join(backends)}")
        lengths = args.lengths or (QUICK_LENGTHS if args.quick else LENGTHS)
        return operator.rows(lengths, backend=args.backend, repeats=repeats, threads=args.threads)
    from cosformer.lab.bench import zoo

    if args.backend != "auto":
        raise ValueError(f"--backend {args.backend} is for the operator; leave it out with --attentions")
    chosen = [name for name in zoo.names(args.attentions) if not zoo.ids(name) <= known]
    return zoo.rows(chosen, _zoo_lengths(args), repeats=repeats, threads=args.threads)


def _zoo_lengths(args: argparse.Namespace) -> tuple[int, ...]:
    return args.lengths or (QUICK_ZOO_LENGTHS if args.quick else ZOO_LENGTHS)


def _kept(args: argparse.Namespace, machine: dict[str, Any], settings: dict[str, Any]) -> list[Any]:
    """With --resume, the rows of attentions that --json FILE holds completely; they must be of this run's making."""
    from cosformer.lab.bench import results, zoo

    if not args.resume:
        return []
    if args.json in (None, "-"):
        raise ValueError("--resume needs --json FILE, the file of the run to go on with")
    old = results.read(Path(args.json))
    same = ("cpu", "instructions", "cores", "threads", "torch")
    if old["settings"] != settings or any(old["machine"][key] != machine[key] for key in same):
        raise ValueError(f"{args.json} is from another machine or other settings; run without --resume")
    rows = results.rows_of(old)
    complete = [name for name in zoo.names("all") if zoo.ids(name) <= {row.id for row in rows}]
    return [row for row in rows if row.id.split("/")[1] in complete]


def _write(found: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _command(args: argparse.Namespace) -> list[str]:
    """The options that shape the numbers, as they would be typed."""
    words = ["bench", "attention"]
    if args.attentions:
        words += ["--attentions", args.attentions]
    if args.lengths:
        words += ["--lengths", ",".join(map(str, args.lengths))]
    for name, default in (("backend", "auto"), ("threads", 2), ("repeats", 9)):
        if getattr(args, name) != default:
            words += [f"--{name}", str(getattr(args, name))]
    return [*words, "--quick"] if args.quick else words


def _compare(old: dict[str, Any], new: dict[str, Any], tolerance: float, out: Any) -> int:
    from cosformer.lab.bench import results, table

    changes = results.compare(old, new)
    if not changes:
        raise ValueError("the two results have no row in common; compare runs of the same benchmark and lengths")
    print("\n" + table.as_text([table.changes_table(changes, tolerance)]), file=out)
    for key in ("cpu", "threads", "torch"):
        if old["machine"][key] != new["machine"][key]:
            print(f"Note: {key} was {old['machine'][key]}, is {new['machine'][key]}", file=out)
    worse = [change for change in changes if change.worse > tolerance]
    verdict = f"{len(worse)} of {len(changes)} rows got worse by more than {tolerance:g}x."
    print("\n" + terminal.paint(verdict, "red" if worse else "green", out), file=out)
    return 1 if worse else 0


def _lengths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas, like 1024,4096") from None
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: lengths start at 1")
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1")
    return int(text)
