"""``python -m studies.cosformer2022``: a table, figure, algorithm or all claims of the paper: run what is missing, print ours beside it."""

import argparse
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from cosformer.cli import Parser, exit_code
from cosformer.commands import numbers, positive
from cosformer.extras import require
from cosformer.suggest import unknown
from studies.cosformer2022 import PROGRAM, Request

if TYPE_CHECKING:
    from cosformer.report.records import Run
    from studies.cosformer2022.cells import Cell

# target -> (what shows it, a function of the request and the runs in `studies.cosformer2022`; one line for --help)
TARGETS: dict[str, tuple[str, str]] = {
    "table1": ("tables.show_scores", "what matters in softmax"),
    "table2": ("tables.show_scores", "language modelling"),
    "table3": ("tables.show_scores", "fine-tuning"),
    "table4": ("tables.show_scores", "Long-Range Arena"),
    "table5": ("tables.show_speeds", "speed and memory of a text classifier"),
    "table6": ("tables.show_scores", "with and without re-weighting"),
    "table7": ("tables.show_sizes", "sizes of the data sets"),
    "figure1": ("figures.show_figure1", "score, speed and memory in one picture"),
    "figure3": ("figures.show_figure3", "attention maps of trained models, and the bare cosine"),
    "figure4": ("figures.show_figure4", "loss curves"),
    "algorithm1": ("algorithms.show_algorithm1", "the printed algorithm against the operator"),
    "algorithm2": ("algorithms.show_algorithm2", "the printed algorithm against ours"),
    "samples": ("samples.show", "inputs with our answer, the vanilla transformer's and the truth"),
    "ledger": ("page.show", "every claim: all runs behind docs/results.md"),
    "rates": ("rates.show", "the search of learning rates for the runs of the ledger"),
    "gates": ("gates.show", "tables of counts that a model must beat for its claims to be judged"),
    "context": ("context.show", "what longer context is worth to the language models of the ledger"),
    "pause": ("", "stop the queue that works in --runs, and its runs, where they stand"),
    "continue": ("", "let them continue"),
}
_UNITS = {"s": 1, "m": 60, "h": 3600}


def main(argv: list[str] | None = None) -> int:
    """Show one target, after what is missing has been run; returns the exit code."""
    return exit_code(PROGRAM, lambda: build_parser().parse_args(argv), run)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=PROGRAM)
    parser.description = (
        "Runs what is missing, uses what is there, continues where it stopped; prints ours beside the paper's."
    )
    parser.epilog = "targets:\n" + "\n".join(f"  {name:<12}{line}" for name, (_, line) in TARGETS.items())
    add = parser.add_argument
    add("target", metavar="TARGET", help="one of those below")
    add("--scale", choices=("small", "paper"), default="small", help="minutes a run on two cores, or the full recipes")
    add("--attentions", type=_names, metavar="NAME,...", help="default: the paper's rows")
    add("--recipes", type=_names, metavar="NAME,...", help="only these of the target's recipes")
    add("--seeds", type=positive, metavar="N", help="seeds 0 to N-1 (default: 3; of ledger and context 5)")
    add("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where the runs are (default: %(default)s)")
    add("--show", action="store_true", help="train nothing: show what there is, in DIR or else committed")
    add("--from", dest="source", type=Path, metavar="FILE", help="runs in FILE are done; with --show: they alone")
    add("--dry-run", action="store_true", help="print the commands of what is missing, run nothing")
    add("--budget", type=_seconds, metavar="30m", help="stop after this time (s, m, h); the same command continues")
    add("--jobs", type=positive, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    add("--threads", type=positive, metavar="N", help="of a run (default: 1; at paper scale torch's own choice)")
    add("--pause-while", type=Path, metavar="FILE", help="stand still while a process holds an exclusive flock on FILE")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="the runs, one line each (default: DIR/TARGET.jsonl, and none with --show)",
    )
    add("--docs", type=Path, default=Path("docs"), metavar="DIR", help="where results/*.json of the benchmarks are")
    add("--lengths", type=numbers, metavar="N,...", help="table 5, figure 1: bytes (default: 1000,2000,3000,4000)")
    add("--batch", type=positive, metavar="N", help="table 5, figure 1: sequences of a step")
    add("--width", type=positive, metavar="N", help="table 5, figure 1: of the model")
    add("--write", type=Path, metavar="DIR", help="ledger: bring DIR/results.md and DIR/results/ up to date")
    add("--into", type=Path, metavar="README", help="ledger: fill that file's 'results' marker")
    return parser


def run(args: argparse.Namespace) -> int:
    from studies.cosformer2022.cells import cells_of

    if args.target in ("pause", "continue"):
        return _pause(args)
    if args.target not in TARGETS:
        raise unknown("target", args.target, TARGETS)
    _check(args)
    if args.seeds is None:
        args.seeds = 5 if args.target in ("ledger", "context") else 3
    cells = cells_of(args.target, args.scale, args.attentions, args.seeds, args.recipes)
    if args.dry_run:
        _print_commands(cells, args)
        return 0
    if cells and not args.show:  # before anything starts, not in the middle of the night
        for package in ("transformers", "accelerate", "tensorboard"):
            require("train", package)
    runs, problems = _runs(cells, args)
    for problem in problems:
        print(f"skipped: {problem}", file=sys.stderr)
    fields = ("target", "scale", "attentions", "seeds", "runs", "docs", "write", "into", "lengths", "batch", "width")
    request = Request(**{name: getattr(args, name) for name in fields}, measure=not args.show)
    module, _, function = TARGETS[args.target][0].partition(".")
    getattr(import_module(f"studies.cosformer2022.{module}"), function)(request, runs)
    return 0


def _runs(cells: "Sequence[Cell]", args: argparse.Namespace) -> "tuple[list[Run], list[str]]":
    """Train what is missing, unless only what is there shall be shown; the finished runs, and what was skipped."""
    from cosformer.report.records import read_runs, write_runs
    from studies.cosformer2022.queue import Queue, estimate
    from studies.cosformer2022.state import collect, merged

    known, problems = ([], []) if args.source is None else _sorted(*read_runs([args.source]))
    if args.source is not None and args.show:
        return known, problems
    left: Sequence[Cell] = ()
    missing = _missing(cells, known, args.runs)
    if args.target == "ledger" and not args.show:
        missing = _with_rates(missing)
    journal = args.json or args.runs / f"{args.target}.jsonl"
    if missing and not args.show:
        _say(estimate(missing, [*known, *_timed(cells, args)], args.jobs))
        options = (args.jobs, args.budget, args.pause_while, _threads(args), _processes(args.scale))
        left = Queue(args.runs, missing, *options, say=_say, journal=journal, background=args.scale == "small").go()
    here, found = collect(cells, args.runs)
    if args.show and cells and not here and args.json is None:
        return _committed(args, found)
    runs = merged(here, known)
    if cells and (args.json or not args.show):  # who only looks changes no file
        write_runs(journal, runs)
    return runs, list(dict.fromkeys([*problems, *found, *(f"{cell.name} is not done" for cell in left)]))


def _missing(cells: "Sequence[Cell]", known: "Sequence[Run]", runs: Path) -> "list[Cell]":
    """The cells without a line, and those whose weights one of them needs and which are not on the disk any more."""
    from studies.cosformer2022.state import DONE, cell_key, state

    done = {cell_key(run) for run in known}
    left = [cell for cell in cells if (cell.recipe, cell.attention, cell.seed, cell.rate or 0.0) not in done]
    left = [cell for cell in left if state(cell, runs)[0] != DONE]
    firsts = {cell.before for cell in left if cell.before is not None and state(cell.before, runs)[0] != DONE}
    return [cell for cell in cells if cell in left or cell in firsts]


def _with_rates(missing: "Sequence[Cell]") -> "list[Cell]":
    """Those that can be trained: no scored run before the rate of its attention has been searched."""
    from studies.cosformer2022.rates import waits

    ready = [cell for cell in missing if not waits(cell.recipe, cell.attention)]
    if len(ready) < len(missing):
        _say(
            f"{len(missing) - len(ready)} runs wait for their learning rates: `python -m studies.cosformer2022 rates` searches them"
        )
    return ready


def _pause(args: argparse.Namespace) -> int:
    from studies.cosformer2022.queue import send

    count = send(args.runs, signal.SIGSTOP if args.target == "pause" else signal.SIGCONT)
    _say(f"{'Paused' if args.target == 'pause' else 'Continued'}: {count} processes of the queue in {args.runs}")
    return 0


def _committed(args: argparse.Namespace, problems: list[str]) -> "tuple[list[Run], list[str]]":
    """Where nothing was run here: the runs that are committed beside the documents, or where they are."""
    from cosformer.report.records import read_runs

    path = args.docs / "results" / ("rates.jsonl" if args.target == "rates" else "runs.jsonl")
    if not path.exists():
        where = (
            f"no finished runs in {args.runs}, and no {path}, which the repository has: in a clone of it they are shown"
        )
        return [], [*problems, f"{where}; or give --from FILE"]
    print(f"No finished runs in {args.runs}: these are the committed ones, {path}.\n", file=sys.stderr)
    # the tables at scale small show the runs of the first version too, which the ledger does not judge
    older = args.docs / "results" / "runs-v1.jsonl"
    files = [path, older] if args.target not in ("ledger", "rates") and older.exists() else [path]
    runs, found = _sorted(*read_runs(files))
    return runs, [*problems, *found]


def _sorted(runs: "list[Run]", problems: list[str]) -> "tuple[list[Run], list[str]]":
    return sorted(runs, key=lambda run: run.cell), problems


def _print_commands(cells: "Sequence[Cell]", args: argparse.Namespace) -> None:
    """One shell line for each cell that is not done, with the time it will take where something like it has run."""
    from studies.cosformer2022.queue import command, estimate, launcher, minutes
    from studies.cosformer2022.state import DONE, state

    runs = _timed(cells, args)
    done, left = 0, []
    for cell in cells:
        kind, why = state(cell, args.runs)
        if kind == DONE:
            done += 1
            continue
        words = command(cell, args.runs, _threads(args))
        count = _processes(args.scale)(cell)
        start = ["cosformer"] if count == 1 else ["torchrun", *launcher(count)[2:]]
        left.append(cell)
        said = ", ".join(filter(None, (why, minutes(cell, runs))))
        print(f"{shlex.join([*start, *words])}  # {said}")
    found = f"{done} of {len(cells)} runs are there already" if cells else f"{args.target} trains nothing"
    said = f"; {estimate(left, runs, args.jobs)}" if left and args.scale == "small" else ""
    print(f"# {found}{said}", file=sys.stderr)


def _timed(cells: "Sequence[Cell]", args: argparse.Namespace) -> "list[Run]":
    """Runs whose times tell how long others will take: those that are here, and those that are committed."""
    from cosformer.report.records import read_runs
    from studies.cosformer2022.state import collect

    committed = [args.docs / "results" / name for name in ("runs.jsonl", "rates.jsonl", "runs-v1.jsonl")]
    return [*collect(cells, args.runs)[0], *read_runs(path for path in committed if path.exists())[0]]


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
    if (args.lengths or args.batch or args.width) and args.target not in ("table5", "figure1"):
        raise ValueError(f"--lengths, --batch and --width are for table5 and figure1, not for {args.target}")
    if args.into and args.target != "ledger":
        raise ValueError(f"--into is for the ledger, not for {args.target}")
    if args.write and args.target not in ("ledger", "rates", "gates", "context"):
        raise ValueError(f"--write is for ledger, rates, gates and context, not for {args.target}")
    if args.target in ("ledger", "rates") and args.scale == "paper":
        raise ValueError(
            "the ledger judges its claims at scale small; the full recipes are those of table1 to table4, as in"
            " `python -m studies.cosformer2022 table2 --scale paper --dry-run`"
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


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a number and a unit, as 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


if __name__ == "__main__":
    raise SystemExit(main())
