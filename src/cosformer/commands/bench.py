"""``cosformer bench``: the options of every benchmark. What each does is in its module of ``cosformer.bench``."""

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from cosformer.commands import numbers, output, positive
from cosformer.output_file import check_output, write_output

# of the results, not of the numbers
_OUTPUT = ("command", "package", "bench", "quick", "json", "resume", "read", "markdown", "into", "compare", "tolerance")


class Option(NamedTuple):
    """``kind``: makes the value of what is typed; bool is a flag."""

    help: str
    kind: Callable[[str], Any] = str
    metavar: str | None = None


class Bench(NamedTuple):
    """``options``: besides those that all have."""

    summary: str
    description: str
    repeats: int
    options: dict[str, Option]
    quick: str = ""


def configure(
    parser: argparse.ArgumentParser, table: dict[str, Bench] | None = None, package: str = "cosformer.bench"
) -> None:
    """``table``: other benchmarks than the library's, whose modules are in ``package``."""
    parser.set_defaults(package=package)
    benches = parser.add_subparsers(dest="bench", metavar="BENCHMARK", required=True)
    for name, bench in (table or BENCHES).items():
        add = benches.add_parser(name, help=bench.summary, description=bench.description).add_argument
        for option, (text, kind, metavar) in bench.options.items():
            value = {"action": "store_true", "default": None} if kind is bool else {"type": kind, "metavar": metavar}
            add(option, help=text, **value)
        add("--threads", type=positive, help="default: 2")
        add("--repeats", type=positive, help=f"of each timing (default: {bench.repeats}); long ones stop at 3")
        if bench.quick:
            add("--quick", action="store_true", help=bench.quick)
        add("--json", type=output, metavar="FILE", help="write the results there; '-' prints them instead of tables")
        add("--read", type=Path, metavar="FILE", help="show the results in FILE, measure nothing")
        add("--markdown", action="store_true", help="print Markdown tables")
        add("--into", type=Path, metavar="FILE", help=f"put the first table between FILE's 'bench {name}' markers")
        add("--compare", type=Path, metavar="OLD.json", help="print old against new; exit code 1 if a row got slower")
        add("--tolerance", type=float, default=1.25, help="by more than this factor (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    from cosformer.bench import runner
    from cosformer.report.measurements import read_results

    if args.tolerance < 1:
        raise ValueError(f"--tolerance {args.tolerance}: a factor of at least 1")
    old = read_results(args.compare) if args.compare else None
    if args.read:
        results = read_results(args.read)
        if args.json not in (None, "-"):
            write_output(args.json, results.json())
    else:
        results = _measure(args)
    runner.show(results, args.package, json=args.json == "-", markdown=args.markdown, into=args.into)
    return 0 if old is None else runner.compare(old, results, args.tolerance, quietly=args.json == "-")


def _measure(args: argparse.Namespace) -> Any:
    from cosformer.bench import runner
    from cosformer.commands.check import usable_device

    given = {name: value for name, value in vars(args).items() if name not in _OUTPUT and value is not None}
    name, resume = args.bench, getattr(args, "resume", False)
    if name == "attention" and given.get("device") == "cpu":
        del given["device"]
    if name == "attention" and "attentions" in given:
        name = "zoo"
        for option in ("device", "backend"):
            if option in given:
                raise ValueError(f"--{option} {given[option]} is for the operator; leave it out with --attentions")
    elif name == "attention" and "device" in given:
        name = "gpu"
        usable_device(args.device)
    elif resume:
        raise ValueError("--resume continues a run of --attentions; the operator's is short: run it again")
    own = args.package == "cosformer.bench"
    program, words = ("cosformer", ["bench", args.bench]) if own else (f"python -m {args.package}", [args.bench])
    for option, value in given.items():
        words += [f"--{option.replace('_', '-')}", *([] if value is True else [_word(value)])]
    quick = {}
    if getattr(args, "quick", False):
        words.append("--quick")
        quick = import_module(f"{args.package}.{name}").QUICK
    save = Path(args.json) if args.json not in (None, "-") else None
    if save is not None:
        check_output(save)
    return runner.measure(f"{args.package}.{name}", quick | given, words, program=program, save=save, resume=resume)


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "''"
    return value.name if isinstance(value, Path) else str(value) or "''"


def some_numbers(text: str) -> tuple[int, ...]:
    return numbers(text) if text else ()


def lengths(text: str, kind: Callable[[str], tuple[int, ...]] = numbers) -> Option:
    return Option(text, kind, "N,N,...")


LIMIT = "of one model's step; above it the step is left out (default: 70 %% of what is free)"
QUIET = "The contestants take turns; run it on a quiet machine."
BENCHES: dict[str, Bench] = {
    "attention": Bench(
        "the operator against torch's attention; the zoo against the length",
        "Every number is a ratio within one run, the median of repeats that take turns, with its quartiles. Float32, "
        "one sequence, 8 heads of 64 channels. Run it on a quiet machine.",
        9,
        {
            "--lengths": lengths("default: 1 to 16,384; with --attentions 1,024 to 8,192"),
            "--attentions": Option(
                "measure these of the zoo instead, time and memory by length", metavar="NAME,...|all"
            ),
            "--backend": Option("backend of the operator (default: auto)"),
            "--device": Option("cuda: measure the operator on a GPU instead, against torch's attention there"),
            "--resume": Option("with --attentions: keep what an interrupted run wrote to --json FILE", bool),
        },
        "fewer lengths and repeats: a minute instead of several",
    ),
    "generate": Bench(
        "time and memory a token, with a state and with a key-value cache",
        "Tokens of a model of 12 layers of width 768 through generate(), eager and compiled, as a multiple of the time "
        "to read its weights once, beside GPT-2 and Mamba of transformers of the same size. "
        "Milliseconds and state bytes per generated token by context length, in one model of 2 layers of width 512 "
        "with 8 heads (float32, one sequence; softmax's cache grows by copying, as transformers' DynamicCache does), "
        "and a run of the model's own step loop in a small model. Needs cosformer[hf].",
        9,
        {
            "--lengths": lengths("default: 1024,4096,16384,65536; '' for none", some_numbers),
            "--tokens": Option("length of the run of the step loop (default: 100,000; 0: none)", int),
            "--batches": lengths("sequences at once, through generate() (default: 1,4; '' for none)", some_numbers),
            "--contexts": lengths("default: 1024,8192,65536,1048576; '' for none", some_numbers),
            "--layers": Option("of the model of width 768 (default: 12)", positive),
        },
        "short lengths and a short run: seconds",
    ),
    "decode": Bench(
        "time per token of a linearized model at growing contexts, against the original model",
        "Milliseconds per token and megabytes of cache after a filled context (random numbers, no prefill), float32, "
        f"one sequence. Lengths beyond a model's limit are timed but not usable. {QUIET} Needs cosformer[hf].",
        9,
        {
            "--source": Option("the original, a language model", metavar="DIR"),
            "--models": Option("linearized models made of it", metavar="DIR,DIR,..."),
            "--lengths": lengths("default: 1024,8192,65536; '' for none", some_numbers),
            "--batches": lengths("sequences at once, through generate() (default: 1; '' for none)", some_numbers),
            "--compiled": Option("those of the models that are compiled as well", metavar="NAME,..."),
        },
    ),
    "train": Bench(
        "tokens per second of each attention in a small language model; the engine",
        "A whole update (forward, loss, backward, Adam) of a byte-level language model of 4 layers with 4 heads, "
        "float32, no dropout, against the same model with torch's softmax attention; each timed update follows an "
        f"untimed one of the same model. {QUIET} Needs cosformer[hf].",
        5,
        {
            "--attentions": Option("besides softmax (default: cosformer)", metavar="NAME,...|all"),
            "--backends": Option("cosFormer also on these (default: plain; '': none)", metavar="NAME,..."),
            "--lengths": lengths("default: 512,2048,8192"),
            "--width": Option("default: 256", numbers, "C,C,..."),
            "--tokens": Option("of a batch (default: 16,384)", positive),
            "--engine-steps": Option("to time the engine by (default: 30; 0: do not)", int),
            "--memory-limit": Option(LIMIT, float, "GB"),
        },
        "short lengths, small batches, three repeats",
    ),
    "long": Bench(
        "a training step by length, up to a million tokens: whole, in windows, over two processes",
        "Tokens per second and peak memory of a step (forward, loss, backward, Adam) of a byte-level causal model of 2 "
        "layers of width 128, one sequence, float32: on one process; on one process in windows that carry the state "
        "(full gradients); on two processes with half of the sequence each; and with torch's softmax attention up to "
        "the given length. Each runs in a fresh process, two processes with half of the threads each. Run it on a "
        "quiet machine. Needs cosformer[hf].",
        3,
        {
            "--lengths": lengths("default: 16384,65536,262144,1048576"),
            "--window": Option("tokens per window (default: 16,384)", positive),
            "--whole-up-to": Option(
                "longest sequence processed whole on one process (default: 262,144)", positive, "N"
            ),
            "--memory-only": Option("run one step of each without timing; also valid on a busy machine", bool),
            "--softmax-up-to": Option("longest for softmax attention (default: 65,536)", positive, "N"),
        },
        "short lengths, one repeat",
    ),
}
