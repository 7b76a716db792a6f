"""``cosformer report``: one page with the tables, plots, curves and maps of everything that was run."""

import argparse
import sys
from pathlib import Path

from cosformer.commands import output_path
from cosformer.commands.train import EXIT_FAILED


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a self-contained HTML page from files: runs, and the JSON files of the benchmarks. Missing or damaged"
        " files are listed on the page, and the rest is shown. The charts need cosformer[plot]."
    )
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="run folders, or folders of runs (default: runs, where it exists)",
    )
    add("--results", type=Path, metavar="DIR", help="a folder of JSON files that `cosformer bench --json` wrote")
    add("-o", "--output", type=output_path, default=Path("report.html"), metavar="FILE", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    runs = args.runs or [path for path in [Path("runs")] if path.is_dir()]
    if not runs and args.results is None:
        raise ValueError("nothing to report on: there is no folder 'runs'; name run folders, or --results DIR")
    if args.output.is_dir():
        raise ValueError(f"{args.output} is a folder; give the page's file, as {args.output / 'report.html'}")
    from cosformer.bench.runner import tables
    from cosformer.report.page import write_report

    for problem in write_report(args.output, runs, args.results, tables):
        print(f"skipped: {problem}", file=sys.stderr)
    print(args.output.resolve())
    return EXIT_FAILED if any(not path.exists() for path in args.runs) else 0
