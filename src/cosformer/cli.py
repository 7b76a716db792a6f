"""The ``cosformer`` command: a table of subcommands, each imported only when it is named."""

import argparse
import errno
import os
import select
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from cosformer import processor
from cosformer._version import __version__
from cosformer.commands.options import Parser
from cosformer.extras import MissingExtra
from cosformer.plugins import load_plugins
from cosformer.suggest import unknown

# group -> name -> one line for --help; cosformer/commands/NAME.py has `configure(parser)` and `run(args) -> exit code`
GROUPS: dict[str, dict[str, str]] = {
    "get started": {
        "demo": "a tour: exactness, speed, training, long input, text, report",
        "check": "check versions, backends and exactness on this machine",
        "list": "list attentions, recipes, data sets, tasks and backends",
        "bench": "measure time and memory, as ratios within one run",
    },
    "models": {
        "generate": "continue a text token by token with a constant-size state",
        "visualize": "draw the attention maps of a model on your own text",
        "convert": "replace the attention of a pretrained model and keep its weights",
        "linearize": "turn a trained softmax model into a linear one",
        "export": "write a model as ONNX files, with its state",
        "compare": "compare models made from a trained one with it on your text",
    },
    "training": {
        "data": "download, generate, show and remove data sets",
        "train": "train a recipe, changing any of its settings",
        "resume": "continue a run that was stopped or killed",
        "eval": "evaluate a run's model",
        "predict": "a model's answers to the rows of a file: classes, numbers, likelihoods",
        "runs": "list runs with their status, scores and times",
        "report": "write one HTML page with all runs and measurements",
    },
}
COMMANDS: dict[str, str] = {name: summary for group in GROUPS.values() for name, summary in group.items()}

# commands of earlier versions -> where they are now
MOVED = {
    "reproduce": "'reproduce' has left the package: in a clone of the repository, run `python -m studies.cosformer2022 "
    "TARGET`"
}

# 0 done; 1 it ran and the answer is no (a check failed); 2 the caller's mistake, or something is missing; 130
# interrupted; 141 the reader of the output went away
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED = 1, 2, 130, 141


def build_parser(only: str | None) -> argparse.ArgumentParser:
    """The parser with every command's name and, of command ``only``, its options (the others stay unimported)."""
    parser = Parser(
        prog="cosformer",
        usage="%(prog)s COMMAND [OPTIONS]",
        description="Attention that is linear in the length of the sequence.",
    )
    parser.add_argument("--version", action="version", version=f"cosformer {__version__}")
    parser.epilog = "\n\n".join(
        f"{group}:\n" + "\n".join(f"  {name:<11}{summary}" for name, summary in commands.items())
        for group, commands in GROUPS.items()
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, description=summary)
        if name == only:
            _module(name).configure(command)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    named = next((word for word in argv if not word.startswith("-")), None)
    if named in MOVED:
        print(f"cosformer: {MOVED[named]}", file=sys.stderr)
        return EXIT_USAGE
    if argv.count("--") > 1:  # which argparse takes for an argument, as a list
        print("cosformer: '--' may be given once", file=sys.stderr)
        return EXIT_USAGE
    if named is not None and named not in COMMANDS:
        print(f"cosformer: {unknown('command', named, COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    program = "cosformer" if named is None else f"cosformer {named}"

    def parse() -> argparse.Namespace:
        load_plugins()
        return build_parser(named).parse_args(argv)

    return exit_code(program, parse, lambda args: _module(args.command).run(args))


def exit_code(program: str, parse: Callable[[], argparse.Namespace], run: Callable[[argparse.Namespace], int]) -> int:
    """The result of ``run`` on what ``parse`` returns; an error is printed in one line prefixed by ``program``."""
    _bound_spinning()
    try:
        code = _run(parse, run)
        sys.stdout.flush()  # here, where a closed pipe can be told from a failure
        return code
    except (MissingExtra, ValueError, FileNotFoundError, FileExistsError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError as error:
        if _reader_is_there():  # it was another pipe: to a worker, to a server
            print(f"{program}: {error}", file=sys.stderr)
            return EXIT_FAILED
        # whoever reads our output, `head` for one, has seen enough
        _silence()
        return EXIT_PIPE_CLOSED
    except OSError as error:
        what = f"{error.filename}" if error.filename is not None else "the output cannot be written"
        # without a number it is not the system's: another library says in a sentence what is wrong with a file
        print(f"{program}: {error if error.errno is None else f'{what}: {error.strerror}'}", file=sys.stderr)
        if error.errno == errno.ENOSPC and error.filename is None:
            _silence()
        return EXIT_FAILED


def _run(parse: Callable[[], argparse.Namespace], run: Callable[[argparse.Namespace], int]) -> int:
    try:
        args = parse()
        if said := processor.prepare():
            print(said, file=sys.stderr)
        return run(args)
    except SystemExit:
        sys.stdout.flush()  # a help text that cannot be written is said as other output is
        raise


def _module(command: str) -> ModuleType:
    return import_module(f"cosformer.commands.{command}")


def _silence() -> None:
    """What could not be written is dropped: nothing is left to fail when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _bound_spinning() -> None:
    """OpenMP's threads wait for each other by spinning, for as long as it takes. On a machine where another program has
    one of the cores, the awaited thread does not run and the others burn its time: training becomes ten times slower. A
    bounded spin, then sleep, costs nothing on a quiet machine (docs/training.md). Before torch is loaded, and only for
    our own commands."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def _reader_is_there() -> bool:
    """Whether the output still has a reader; a pipe whose reader has exited reports it at once."""
    waiting = select.poll()
    waiting.register(sys.stdout.fileno(), 0)
    return not any(event & (select.POLLERR | select.POLLHUP) for _, event in waiting.poll(0))
