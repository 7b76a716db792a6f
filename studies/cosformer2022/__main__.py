"""``python -m studies.cosformer2022``: train what a table, figure or claim needs and print it next to the paper."""

import argparse
import difflib
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cosformer.attention import attention_class
from cosformer.runs import Run, read_runs, write_runs
from studies.cosformer2022 import PLUGIN, PROGRAM, RECORDS, Request, costs, gates, rates, recipes
from studies.cosformer2022.blocks import BLOCKS, SEEDS
from studies.cosformer2022.cells import Cell, cells_of
from studies.cosformer2022.loop import command, estimate, launcher, minutes, train
from studies.cosformer2022.rates import waits
from studies.cosformer2022.schedule import missing, search_lines, without, work
from studies.cosformer2022.state import DONE, collect, merged, state
from studies.cosformer2022.variants import attentions_of

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
    "ledger": ("page.show", "every claim, judged from its runs"),
    "rates": ("rates.show", "the search of learning rates for the runs of the ledger"),
    "gates": ("gates.show", "tables of counts that a model must beat for its claims to be judged"),
    "costs": ("costs.show", "what the runs of the ledger will take, predicted from a few updates"),
    "context": ("context.show", "what longer context is worth to the language models of the ledger"),
}
_UNITS = {"s": 1, "m": 60, "h": 3600}


def main(argv: list[str] | None = None) -> int:
    """Show one target, after what is missing has been run; returns the exit code."""
    args = build_parser().parse_args(argv)
    try:
        run(args)
    except (ValueError, RuntimeError, FileNotFoundError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.usage = "%(prog)s [OPTIONS] TARGET"
    parser.description = (
        "Runs what is missing, uses what is there, continues where it stopped; prints ours beside the paper's."
    )
    parser.epilog = "targets:\n" + "\n".join(f"  {name:<12}{line}" for name, (_, line) in TARGETS.items())
    add = parser.add_argument
    add("target", metavar="TARGET", type=_target, help="one of those below")
    add("--scale", choices=("small", "paper"), default="small", help="minutes a run on two cores, or the full recipes")
    add("--attentions", type=_names, metavar="NAME,...", help="default: the paper's rows")
    add("--recipes", type=_names, metavar="NAME,...", help="only these of the target's recipes")
    add("--block", choices=tuple(BLOCKS), help="ledger and rates: only this part of the runs")
    add("--seeds", type=_positive, metavar="N", help="seeds 0 to N-1 (default: 3; of ledger and context 5)")
    add("--runs", type=Path, default=Path("runs"), metavar="DIR", help="where the runs are (default: %(default)s)")
    add("--show", action="store_true", help="train nothing: show what there is, in --runs or else committed")
    add("--from", dest="source", type=Path, metavar="FILE", help="runs in FILE are done; with --show: they alone")
    add("--dry-run", action="store_true", help="print the commands of what is missing, run nothing")
    add("--budget", type=_seconds, metavar="30m", help="stop after this time (s, m, h); the same command continues")
    add("--jobs", type=_positive, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    add("--threads", type=_positive, metavar="N", help="of a run (default: 1; at paper scale torch's own choice)")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="the runs, one a line (default: RUNS/TARGET.jsonl, and none with --show)",
    )
    add("--docs", type=Path, default=Path("docs"), metavar="DIR", help="where results/*.json of the benchmarks are")
    add("--records", type=Path, default=RECORDS, metavar="DIR", help="where the committed runs, rates and gates are")
    add("--lengths", type=_numbers, metavar="N,...", help="table 5, figure 1: bytes (default: 1000,2000,3000,4000)")
    add("--batch", type=_positive, metavar="N", help="table 5, figure 1: sequences of a step")
    add("--width", type=_positive, metavar="N", help="table 5, figure 1: of the model")
    add(
        "--write",
        type=Path,
        metavar="DIR",
        help="ledger and what it rests on: bring DIR/results and DIR/results.md up to date",
    )
    add("--into", type=Path, metavar="README", help="ledger: fill that file's 'results' marker")
    return parser


def _target(name: str) -> str:
    if name not in TARGETS:
        near = difflib.get_close_matches(name, TARGETS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TARGETS)}"
        raise argparse.ArgumentTypeError(f"unknown target {name!r}; {hint}")
    return name


def run(args: argparse.Namespace) -> None:
    _check(args)
    if args.seeds is None:
        args.seeds = SEEDS if args.target in ("ledger", "rates", "context") else 3
    cells = cells_of(args.target, args.scale, args.attentions, args.seeds, args.recipes)
    if args.dry_run:
        return _print_commands(cells, args)
    runs, problems = _runs(cells, args)
    for problem in problems:
        print(f"skipped: {problem}", file=sys.stderr)
    fields = (
        "target",
        "scale",
        "attentions",
        "seeds",
        "runs",
        "docs",
        "records",
        "write",
        "into",
        "lengths",
        "batch",
        "width",
    )
    request = Request(**{name: getattr(args, name) for name in fields}, measure=not args.show)
    module, _, function = TARGETS[args.target][0].partition(".")
    return getattr(import_module(f"studies.cosformer2022.{module}"), function)(request, runs)


def _runs(cells: Sequence[Cell], args: argparse.Namespace) -> tuple[list[Run], list[str]]:
    """Train what is missing, unless only what is there shall be shown; the finished runs, and what was skipped."""
    known, problems = ([], []) if args.source is None else read_runs([args.source])
    known.sort(key=lambda run: run.key)
    if args.show and args.source is not None:
        return known, problems
    journal = args.json or args.runs / f"{args.target}.jsonl"
    left = [] if args.show or not cells else _train(cells, known, journal, args)
    searched = (
        search_lines(args.runs) if args.target in ("ledger", "rates") else []
    )  # before runs are told by their rates
    here, found = collect(cells, args.runs)
    if args.target == "rates":
        return searched, found
    if args.target == "ledger" and args.write and not args.show:
        write_runs(args.write / "results" / rates.FILE, searched)
    if args.show and cells and not here and args.json is None:
        runs, more = _committed(args)
        return runs, [*problems, *found, *more]
    runs = merged(here, known)
    if cells and (args.json or not args.show):  # who only looks changes no file
        write_runs(journal, runs)
    return runs, list(dict.fromkeys([*problems, *found, *(f"{cell.name} is not done" for cell in left)]))


def _train(cells: Sequence[Cell], known: Sequence[Run], journal: Path, args: argparse.Namespace) -> list[Cell]:
    """Train what is missing of ``cells``; returns those that are not done."""
    todo = _missing(cells, known, args, _blocks(args))
    if not todo:
        return []
    if find_spec("transformers") is None:  # before anything starts, not in the middle of the night
        raise ValueError("training needs packages that are not installed: pip install 'cosformer[train]'")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as an interrupt from the keyboard
    _say(estimate(todo, [*known, *_timed(cells, args)], args.jobs, costs.read(args.records)))
    args.runs.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"jobs": args.jobs, "threads": _threads(args), "processes": _processes(args.scale)}
    options |= {"seconds": args.budget, "journal": journal, "say": _say}
    if args.target not in ("ledger", "rates"):
        return train(todo, args.runs, **options)
    own = {"wanted": set(cells).__contains__, "scored_too": args.target == "ledger"}
    return work(_blocks(args), args.runs, known, gates.read(args.records), **own, **options)


def _missing(
    cells: Sequence[Cell], known: Sequence[Run], args: argparse.Namespace, blocks: Sequence[str]
) -> list[Cell]:
    """The cells without a line, and those whose weights one of them needs and which are not on the disk any more; of
    ``blocks`` of the ledger those that can change a verdict, and their searches."""
    if args.target in ("ledger", "rates"):
        found = [missing(x, args.runs, known, gates.read(args.records), set(cells).__contains__) for x in blocks]
        return [
            cell for searches, scored in found for cell in (*searches, *(scored if args.target == "ledger" else ()))
        ]
    left = [cell for cell in without(cells, known) if state(cell, args.runs)[0] != DONE]
    firsts = {cell.before for cell in left if cell.before is not None and state(cell.before, args.runs)[0] != DONE}
    return [cell for cell in cells if cell in left or cell in firsts]


def _blocks(args: argparse.Namespace) -> list[str]:
    return [args.block] if args.block else list(BLOCKS)


def _committed(args: argparse.Namespace) -> tuple[list[Run], list[str]]:
    """Where nothing was run here: the committed runs."""
    path = args.records / ("rates.jsonl" if args.target == "rates" else "runs.jsonl")
    if not path.exists():
        return [], [f"no finished runs in {args.runs}, and no {path}; give --from FILE"]
    print(f"No finished runs in {args.runs}: these are the committed ones, {path.name}.\n", file=sys.stderr)
    # the tables at scale small show the runs of the first version too, which the ledger does not judge
    older = args.records / "runs-v1.jsonl"
    files = [path, older] if args.target not in ("ledger", "rates") and older.exists() else [path]
    runs, problems = read_runs(files)
    return sorted(runs, key=lambda run: run.key), problems


def _print_commands(cells: Sequence[Cell], args: argparse.Namespace) -> None:
    """One shell line for each cell that is not done, with the time it will take; of the ledger under its block."""
    runs, predicted = _timed(cells, args), costs.read(args.records)
    known = [] if args.source is None else read_runs([args.source])[0]
    everything: list[Cell] = []
    for block in _blocks(args) if args.target in ("ledger", "rates") else [None]:
        left = _missing(cells, known, args, [] if block is None else [block])
        everything += left
        if block is not None:
            print(f"# block {block}: {estimate(left, runs, args.jobs, predicted)}")
        for cell in left:
            count = _processes(args.scale)(cell)
            own = [PLUGIN] if cell.recipe in recipes.RECIPES else []
            start = ["cosformer"] if count == 1 else ["torchrun", *launcher(count)[2:]]
            waiting = "its rate is searched first" if cell.rate is None and waits(cell.recipe, cell.attention) else ""
            said = ", ".join(filter(None, (state(cell, args.runs)[1], waiting, minutes(cell, runs, predicted))))
            print(f"{shlex.join([*own, *start, *command(cell, args.runs, _threads(args))])}  # {said}")
    there = len(without(cells, [*known, *collect(cells, args.runs)[0]]))
    found = f"{len(cells) - there} of {len(cells)} runs are there already" if cells else f"{args.target} trains nothing"
    said = f"; {estimate(everything, runs, args.jobs, predicted)}" if everything and args.scale == "small" else ""
    print(f"# {found}{said}", file=sys.stderr)


def _timed(cells: Sequence[Cell], args: argparse.Namespace) -> list[Run]:
    """Runs whose times tell how long others will take: those that are here, and those that are committed."""
    committed = [args.records / name for name in ("runs.jsonl", "rates.jsonl", "runs-v1.jsonl")]
    return [*collect(cells, args.runs)[0], *read_runs(path for path in committed if path.exists())[0]]


def _threads(args: argparse.Namespace) -> int | None:
    return args.threads or (1 if args.scale == "small" else None)


def _processes(scale: str) -> Callable[[Cell], int]:
    """How many processes a run takes: at paper scale as many as the paper had GPUs."""
    gpus = {"lm": 8, "mlm": 2}
    return lambda cell: gpus.get(cell.recipe.partition("-")[0], 1) if scale == "paper" else 1


def _check(args: argparse.Namespace) -> None:
    for name in args.attentions or ():
        for each in attentions_of(name):
            attention_class(each)
    if (args.lengths or args.batch or args.width) and args.target not in ("table5", "figure1"):
        raise ValueError(f"--lengths, --batch and --width are for table5 and figure1, not for {args.target}")
    if args.into and args.target != "ledger":
        raise ValueError(f"--into is for the ledger, not for {args.target}")
    if args.write and args.target not in ("ledger", "rates", "gates", "costs", "context"):
        raise ValueError(f"--write is for ledger, rates, gates, costs and context, not for {args.target}")
    if args.target in ("ledger", "rates") and args.scale == "paper":
        raise ValueError(
            "the ledger judges its claims at scale small; the full recipes are those of table1 to table4, as in"
            f" `{PROGRAM} table2 --scale paper --dry-run`"
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


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, _names(text)))


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a number and a unit, as 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


if __name__ == "__main__":
    raise SystemExit(main())
