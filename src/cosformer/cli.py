"""The ``cosformer`` command: a table of subcommands, each imported only when it is named."""

import argparse
import errno
import os
import select
import sys
from importlib import import_module
from types import ModuleType
from typing import IO, NoReturn

from cosformer import processor
from cosformer._version import __version__
from cosformer.extras import MissingExtra
from cosformer.suggest import unknown

# name -> one line for --help; cosformer/commands/NAME.py has `configure(parser)` and `run(args) -> exit code`
COMMANDS: dict[str, str] = {
    "demo": "see it work: exactness, speed, training, a million bytes read, text written, a report",
    "check": "versions, backends and exactness of every form on this machine",
    "bench": "measure time and memory, as ratios within one run",
    "list": "the table of attentions",
    "convert": "a pretrained model with its attention replaced and its weights kept",
    "linearize": "a trained softmax model made linear: learned maps, then LoRA",
    "compare": "models made of a trained one, beside it: perplexity or embeddings on your text",
    "generate": "continue a text, token by token, with a constant-size state",
    "data": "get, make, show and remove data sets",
    "train": "train a recipe, any field of it changed by name",
    "resume": "continue a run that was stopped or killed",
    "eval": "score a run's model",
    "runs": "the runs of a folder: status, best score, time",
    "report": "one HTML page with all runs and measurements",
    "visualize": "attention maps of each layer and head of a model, on your own text",
    "reproduce": "a table, a figure or all claims of the paper, with our numbers beside it",
}

# 0 done; 1 it ran and the answer is no (a check failed); 2 the caller's mistake, or something is missing; 130 interrupted;
# 141 the reader of the output went away
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 1, 2, 130, 141


class _Parser(argparse.ArgumentParser):
    """Mistakes are said in one line, as all others are."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see `{self.prog} --help`\n")

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:
        (file or sys.stderr).write(message)  # argparse itself hides that a disk is full


def build_parser(only: str | None) -> argparse.ArgumentParser:
    """The parser with every command's name and, of command ``only``, its options (the others stay unimported)."""
    parser = _Parser(prog="cosformer", description="Attention that is linear in the length of the sequence.")
    parser.add_argument("--version", action="version", version=f"cosformer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == only:
            _module(name).configure(command)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    named = next((word for word in argv if not word.startswith("-")), None)
    if named is not None and named not in COMMANDS:
        print(f"cosformer: {unknown('command', named, COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    _bound_spinning()
    try:
        code = _run(named, argv)
        sys.stdout.flush()  # here, where a closed pipe can be told from a failure
        return code
    except (MissingExtra, ValueError, FileNotFoundError, FileExistsError) as error:
        print(f"cosformer {named}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError as error:
        if _reader_is_there():  # it was another pipe: to a worker, to a server
            print(f"cosformer {named}: {error}", file=sys.stderr)
            return EXIT_FAILED
        # whoever reads our output, `head` for one, has seen enough
        _silence()
        return EXIT_PIPE_CLOSED
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        print(f"cosformer {named}: the output cannot be written: {error.strerror}", file=sys.stderr)
        _silence()
        return EXIT_FAILED


def _run(named: str | None, argv: list[str]) -> int:
    try:
        args = build_parser(named).parse_args(argv)
    except SystemExit:
        sys.stdout.flush()  # a help text that cannot be written is said as other output is
        raise
    if said := processor.prepare():
        print(said, file=sys.stderr)
    return _module(args.command).run(args)


def _module(command: str) -> ModuleType:
    return import_module(f"cosformer.commands.{command}")


def _silence() -> None:
    """What could not be written is dropped: nothing is left to fail when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _bound_spinning() -> None:
    """OpenMP's threads wait for each other by spinning, for as long as it takes. On a machine where another program has one of
    the cores, the awaited thread does not run and the others burn its time: training becomes ten times slower. A bounded
    spin, then sleep, costs nothing on a quiet machine (docs/training.md). Before torch is loaded, and only for our own commands."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def _reader_is_there() -> bool:
    """Whether what is printed still goes somewhere: a pipe whose reader went away says so at once."""
    waiting = select.poll()
    waiting.register(sys.stdout.fileno(), 0)
    return not any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0))
