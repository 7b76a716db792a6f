"""``cosformer reproduce``: a table, figure, algorithm or all claims of the paper: run what is missing, print ours beside it."""

import argparse
import re
import shlex
import sys
from pathlib import Path

# target -> (module with `show(options) -> exit code`, one line for --help)
TARGETS: dict[str, tuple[str, str]] = {
    "ledger": ("cosformer.reproduce.ledger", "every claim: all runs behind docs/results.md"),
}
_UNITS = {"s": 1, "m": 60, "h": 3600}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs what is missing, uses what is there, goes on where it stopped. Ours is printed beside the paper's."
    )
    add = parser.add_argument
    add(
        "target",
        metavar="TARGET",
        choices=TARGETS,
        help="; ".join(f"{name}: {line}" for name, (_, line) in TARGETS.items()),
    )
    add("--scale", choices=("small", "paper"), default="small", help="minutes a cell on two cores, or the full recipes")
    add("--attentions", type=lambda text: tuple(text.split(",")), metavar="NAME,...", help="default: the paper's rows")
    add("--seeds", type=_positive, default=3, metavar="N", help="seeds 0 to N-1 (default: %(default)s)")
    add("--budget", type=_seconds, metavar="30m", help="stop after this time (s, m, h); the same command goes on")
    add("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where the runs are (default: %(default)s)")
    add("--dry-run", action="store_true", help="print the commands of what is missing, run nothing")
    add("--jobs", type=_positive, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    add("--threads", type=_positive, metavar="N", help="of a run (default: 1; at paper scale torch's own choice)")
    add("--pause-while", type=Path, metavar="FILE", help="stand still while a process holds an exclusive flock on FILE")
    add("--json", type=Path, metavar="FILE", help="write the runs as JSON lines (default: DIR/runs.jsonl)")


def run(args: argparse.Namespace) -> int:
    from cosformer.reproduce.cells import cells_of
    from cosformer.reproduce.queue import Queue
    from cosformer.reproduce.summary import summaries, write_lines

    _check(args)
    cells = cells_of(args.target, args.scale, args.attentions, args.seeds)
    if args.dry_run:
        print_commands(cells, args)
        return 0
    threads = args.threads or (1 if args.scale == "small" else None)
    queue = Queue(args.runs, cells, args.jobs, args.budget, args.pause_while, threads, _processes(args.scale), say=_say)
    left = queue.go() if cells else []
    lines, problems = summaries(args.runs)
    if cells:
        write_lines(lines, args.json or args.runs / "runs.jsonl")
    for problem in problems:
        print(f"skipped: {problem}", file=sys.stderr)
    if left:
        print(f"{len(left)} of {len(cells)} runs are not done.")
    return 0


def print_commands(cells: list, args: argparse.Namespace) -> None:
    """One shell line for each cell that is not done."""
    from cosformer.reproduce.queue import launcher
    from cosformer.reproduce.state import DONE, HALF, state

    threads = args.threads or (1 if args.scale == "small" else None)
    done = 0
    for cell in cells:
        kind, why = state(cell, args.runs)
        if kind == DONE:
            done += 1
            continue
        words = ["resume", str(args.runs / cell.name)] if kind == HALF else cell.words(args.runs, threads)
        count = _processes(args.scale)(cell)
        start = ["cosformer"] if count == 1 else ["torchrun", *launcher(count)[2:]]
        print(shlex.join([*start, *words]) + (f"  # {why}" if why else ""))
    if done:
        print(f"# {done} of {len(cells)} runs are there already", file=sys.stderr)


def _processes(scale: str):
    """How many processes a run takes: at paper scale as many as the paper had GPUs."""
    gpus = {"lm": 8, "mlm": 2}
    return lambda cell: gpus.get(cell.recipe.partition("-")[0], 1) if scale == "paper" else 1


def _check(args: argparse.Namespace) -> None:
    from cosformer.attention import attention_class

    for name in args.attentions or ():
        attention_class(name)
    if args.scale == "paper" and not args.dry_run:
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                "--scale paper needs GPUs, and there are none; --dry-run prints its commands for a cluster"
            )


def _say(text: str) -> None:
    print(text, flush=True)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a number and a unit, as 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1")
    return int(text)
