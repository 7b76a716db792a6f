"""``cosformer reproduce``: a table, figure, algorithm or all claims of the paper: run what is missing, print ours beside it."""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosformer.lab.paper.cells import Cell
    from cosformer.lab.records import Run

# target -> (module with `show(request, runs)`, one line for --help)
TARGETS: dict[str, tuple[str, str]] = {
    "table1": ("cosformer.lab.paper.tables", "what matters in softmax"),
    "table2": ("cosformer.lab.paper.tables", "language modelling"),
    "table3": ("cosformer.lab.paper.tables", "fine-tuning"),
    "table4": ("cosformer.lab.paper.tables", "Long-Range Arena"),
    "table5": ("cosformer.lab.paper.tables", "speed and memory of a text classifier"),
    "table6": ("cosformer.lab.paper.tables", "with and without re-weighting"),
    "table7": ("cosformer.lab.paper.tables", "sizes of the data sets"),
    "figure1": ("cosformer.lab.paper.figures", "score, speed and memory in one picture"),
    "figure3": ("cosformer.lab.paper.figures", "attention maps of trained models, and the bare cosine"),
    "figure4": ("cosformer.lab.paper.figures", "loss curves"),
    "algorithm1": ("cosformer.lab.paper.algorithms", "the printed algorithm against the operator"),
    "algorithm2": ("cosformer.lab.paper.algorithms", "the printed algorithm against ours"),
    "samples": ("cosformer.lab.paper.samples", "inputs with our answer, the vanilla transformer's and the truth"),
    "ledger": ("cosformer.lab.paper.page", "every claim: all runs behind docs/results.md"),
}
_UNITS = {"s": 1, "m": 60, "h": 3600}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs what is missing, uses what is there, goes on where it stopped; prints ours beside the paper's."
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "targets:\n" + "\n".join(f"  {name:<12}{line}" for name, (_, line) in TARGETS.items())
    add = parser.add_argument
    add("target", metavar="TARGET", choices=TARGETS, help="one of those below")
    add("--scale", choices=("small", "paper"), default="small", help="minutes a run on two cores, or the full recipes")
    add("--attentions", type=_names, metavar="NAME,...", help="default: the paper's rows")
    add("--recipes", type=_names, metavar="NAME,...", help="only these of the target's recipes")
    add("--seeds", type=_positive, default=3, metavar="N", help="seeds 0 to N-1 (default: %(default)s)")
    add("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where the runs are (default: %(default)s)")
    add("--show", action="store_true", help="train nothing: show what there is, in DIR or else committed")
    add("--from", dest="source", type=Path, metavar="FILE", help="with --show: the runs' lines in FILE, not DIR's runs")
    add("--dry-run", action="store_true", help="print the commands of what is missing, run nothing")
    add("--budget", type=_seconds, metavar="30m", help="stop after this time (s, m, h); the same command goes on")
    add("--jobs", type=_positive, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    add("--threads", type=_positive, metavar="N", help="of a run (default: 1; at paper scale torch's own choice)")
    add("--pause-while", type=Path, metavar="FILE", help="stand still while a process holds an exclusive flock on FILE")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="the runs, one line each (default: DIR/TARGET.jsonl, and none with --show)",
    )
    add("--docs", type=Path, default=Path("docs"), metavar="DIR", help="where results/*.json of the benchmarks are")
    add("--lengths", type=_lengths, metavar="N,...", help="table 5, figure 1: bytes (default: 1000,2000,3000,4000)")
    add("--batch", type=_positive, metavar="N", help="table 5, figure 1: sequences of a step")
    add("--width", type=_positive, metavar="N", help="table 5, figure 1: of the model")
    add("--write", type=Path, metavar="DIR", help="ledger: bring DIR/results.md and DIR/results/ up to date")
    add("--into", type=Path, metavar="README", help="ledger: fill that file's 'results' marker")


def run(args: argparse.Namespace) -> int:
    from cosformer.lab.paper.cells import cells_of
    from cosformer.lab.paper.request import Request

    _check(args)
    cells = cells_of(args.target, args.scale, args.attentions, args.seeds, args.recipes)
    if args.dry_run:
        _print_commands(cells, args)
        return 0
    runs, problems = _runs(cells, args)
    for problem in problems:
        print(f"skipped: {problem}", file=sys.stderr)
    fields = ("target", "scale", "attentions", "seeds", "runs", "docs", "write", "into", "lengths", "batch", "width")
    request = Request(**{name: getattr(args, name) for name in fields}, measure=not args.show)
    import_module(TARGETS[args.target][0]).show(request, runs)
    return 0


def _runs(cells: "Sequence[Cell]", args: argparse.Namespace) -> "tuple[list[Run], list[str]]":
    """Train what is missing, unless only what is there shall be shown; the finished runs, and what was skipped."""
    from cosformer.lab.paper.queue import Queue
    from cosformer.lab.paper.summary import collect
    from cosformer.lab.records import read_runs, write_runs

    if args.source is not None:
        return _sorted(*read_runs([args.source]))
    left: Sequence[Cell] = ()
    if cells and not args.show:
        options = (args.jobs, args.budget, args.pause_while, _threads(args), _processes(args.scale))
        left = Queue(args.runs, cells, *options, say=_say).go()
    runs, problems = collect(cells, args.runs)
    if args.show and cells and not runs and args.json is None:
        return _committed(args, problems)
    if cells and (args.json or not args.show):  # who only looks changes no file
        write_runs(args.json or args.runs / f"{args.target}.jsonl", runs)
    return runs, list(dict.fromkeys([*problems, *(f"{cell.name} is not done" for cell in left)]))


def _committed(args: argparse.Namespace, problems: list[str]) -> "tuple[list[Run], list[str]]":
    """Where nothing was run here: the runs that are committed beside the documents, or where they are."""
    from cosformer.lab.records import read_runs

    path = args.docs / "results" / "runs.jsonl"
    if not path.exists():
        where = (
            f"no finished runs in {args.runs}, and no {path}, which the repository has: in a clone of it they are shown"
        )
        return [], [*problems, f"{where}; or give --from FILE"]
    print(f"No finished runs in {args.runs}: these are the committed ones, {path}.\n", file=sys.stderr)
    runs, found = _sorted(*read_runs([path]))
    return runs, [*problems, *found]


def _sorted(runs: "list[Run]", problems: list[str]) -> "tuple[list[Run], list[str]]":
    return sorted(runs, key=lambda run: run.cell), problems


def _print_commands(cells: "Sequence[Cell]", args: argparse.Namespace) -> None:
    """One shell line for each cell that is not done."""
    from cosformer.lab.paper.queue import command, launcher
    from cosformer.lab.paper.state import DONE, state

    done = 0
    for cell in cells:
        kind, why = state(cell, args.runs)
        if kind == DONE:
            done += 1
            continue
        words = command(cell, args.runs, _threads(args))
        count = _processes(args.scale)(cell)
        start = ["cosformer"] if count == 1 else ["torchrun", *launcher(count)[2:]]
        print(shlex.join([*start, *words]) + (f"  # {why}" if why else ""))
    found = f"{done} of {len(cells)} runs are there already" if cells else f"{args.target} trains nothing"
    print(f"# {found}", file=sys.stderr)


def _threads(args: argparse.Namespace) -> int | None:
    return args.threads or (1 if args.scale == "small" else None)


def _processes(scale: str):
    """How many processes a run takes: at paper scale as many as the paper had GPUs."""
    gpus = {"lm": 8, "mlm": 2}
    return lambda cell: gpus.get(cell.recipe.partition("-")[0], 1) if scale == "paper" else 1


def _check(args: argparse.Namespace) -> None:
    from cosformer.attention import attention_class

    for name in args.attentions or ():
        attention_class(name)
    if args.source is not None and not args.show:
        raise ValueError("--from FILE shows runs that are over; give --show with it")
    if (args.lengths or args.batch or args.width) and args.target not in ("table5", "figure1"):
        raise ValueError(f"--lengths, --batch and --width are for table5 and figure1, not for {args.target}")
    if (args.write or args.into) and args.target != "ledger":
        raise ValueError(f"--write and --into are for the ledger, not for {args.target}")
    if args.target == "ledger" and args.scale == "paper":
        raise ValueError(
            "the ledger judges its claims at scale small; the full recipes are those of table1 to table4, as in"
            " `cosformer reproduce table2 --scale paper --dry-run`"
        )
    if args.scale == "paper" and not (args.dry_run or args.show):
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                "--scale paper needs GPUs, and there are none; --dry-run prints its commands for a cluster"
            )


def _say(text: str) -> None:
    print(text, flush=True)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a number and a unit, as 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1")
    return int(text)
