"""``cosformer bench``: the options of every benchmark. What each does is in its module of ``cosformer.lab.bench``."""

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

# of the results, not of the numbers
_OUTPUT = ("command", "bench", "quick", "json", "resume", "read", "markdown", "into", "compare", "tolerance")


class Bench(NamedTuple):
    """``options``: adds its own; None where there are none but threads and repeats."""

    summary: str
    description: str
    repeats: int
    options: Callable[[Callable[..., Any]], None] | None = None
    quick: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    benches = parser.add_subparsers(dest="bench", metavar="BENCHMARK", required=True)
    for name, bench in BENCHES.items():
        add = benches.add_parser(name, help=bench.summary, description=bench.description).add_argument
        if bench.options:
            bench.options(add)
        add("--threads", type=_positive, help="default: 2")
        add("--repeats", type=_positive, help=f"of each timing (default: {bench.repeats}); long ones stop at 3")
        if bench.quick:
            add("--quick", action="store_true", help=bench.quick)
        add("--json", metavar="FILE", help="write the results there; '-' prints them instead of tables")
        add("--read", type=Path, metavar="FILE", help="show the results in FILE, measure nothing")
        add("--markdown", action="store_true", help="print Markdown tables")
        add("--into", type=Path, metavar="FILE", help=f"put the first table between FILE's 'bench {name}' markers")
        add("--compare", type=Path, metavar="OLD.json", help="print old against new; exit code 1 if a row got slower")
        add("--tolerance", type=float, default=1.25, help="by more than this factor (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    from cosformer.lab.bench import runner
    from cosformer.lab.records import read_results

    if args.tolerance < 1:
        raise ValueError(f"--tolerance {args.tolerance}: a factor of at least 1")
    old = read_results(args.compare) if args.compare else None
    if args.read:
        results = read_results(args.read)
        if args.json not in (None, "-"):
            Path(args.json).write_text(results.json(), encoding="utf-8")
    else:
        results = _measure(args)
    runner.show(results, json=args.json == "-", markdown=args.markdown, into=args.into)
    return 0 if old is None else runner.compare(old, results, args.tolerance, quietly=args.json == "-")


def _measure(args: argparse.Namespace) -> Any:
    from cosformer.commands.check import usable_device
    from cosformer.lab.bench import runner

    given = {name: value for name, value in vars(args).items() if name not in _OUTPUT and value is not None}
    name, resume = args.bench, getattr(args, "resume", False)
    if name == "attention" and given.get("device") == "cpu":
        del given["device"]
    if name == "attention" and "attentions" in given:
        name = "zoo"
        if "device" in given:
            raise ValueError(f"--device {args.device} is for the operator; leave it out with --attentions")
        if "backend" in given:
            raise ValueError(f"--backend {args.backend} is for the operator; leave it out with --attentions")
    elif name == "attention" and "device" in given:
        name = "gpu"
        usable_device(args.device)
    elif resume:
        raise ValueError("--resume continues a run of --attentions; the operator's is short: run it again")
    words = ["bench", args.bench]
    for option, value in given.items():
        words += [f"--{_FLAGS.get(option, option).replace('_', '-')}", *([] if value is True else [_word(value)])]
    quick = {}
    if getattr(args, "quick", False):
        words.append("--quick")
        quick = import_module(f"cosformer.lab.bench.{name}").QUICK
    save = Path(args.json) if args.json not in (None, "-") else None
    return runner.measure(name, quick | given, words, save=save, resume=resume)


_FLAGS = {"memory_limit_gb": "memory_limit"}


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "''"
    return value.name if isinstance(value, Path) else str(value) or "''"


def _attention(add: Callable[..., Any]) -> None:
    add("--lengths", type=_numbers, metavar="N,N,...", help="default: 1 to 16,384; with --attentions 1,024 to 8,192")
    add("--attentions", metavar="NAME,...|all", help="measure these of the zoo instead, time and memory by length")
    add("--backend", help="backend of the operator (default: auto)")
    add("--device", help="cuda: measure the operator on a GPU instead, against torch's attention there")
    add("--resume", action="store_true", help="with --attentions: keep what an interrupted run wrote to --json FILE")


def _native(add: Callable[..., Any]) -> None:
    add("--lengths", type=_numbers, metavar="N,N,...", help="default: 4096,16384")


def _jax(add: Callable[..., Any]) -> None:
    add("--lengths", type=_some_numbers, metavar="N,N,...", help="default: 1024,4096,16384; '' for none")
    text = "to measure memory at (default: 16384,65536; '' for none)"
    add("--memory-lengths", type=_some_numbers, metavar="N,N,...", help=text)


def _data(add: Callable[..., Any]) -> None:
    add("--text", type=Path, metavar="FILE", help="text for the BPE part (default: the Python library's sources)")
    add("--tokenizer", type=Path, metavar="FOLDER", help="a tokenizer's files (default: a BPE of 8000 is learnt)")


def _generate(add: Callable[..., Any]) -> None:
    add("--lengths", type=_some_numbers, metavar="N,N,...", help="default: 1024,4096,16384,65536; '' for none")
    add("--tokens", type=int, help="length of the run of the step loop (default: 100,000; 0: none)")


def _decode(add: Callable[..., Any]) -> None:
    add("--source", metavar="DIR", help="the original, a language model")
    add("--models", metavar="DIR,DIR,...", help="linearized models made of it")
    add("--lengths", type=_numbers, metavar="N,N,...", help="default: 1024,8192,65536")


def _train(add: Callable[..., Any]) -> None:
    add("--attentions", metavar="NAME,...|all", help="besides softmax (default: cosformer)")
    add("--backends", metavar="NAME,...", help="cosFormer also on these (default: chunked; '': none)")
    add("--lengths", type=_numbers, metavar="N,N,...", help="default: 512,2048,8192")
    add("--width", type=_numbers, metavar="C,C,...", help="default: 256")
    add("--tokens", type=_positive, help="of a batch (default: 16,384)")
    add("--engine-steps", type=int, help="to time the engine by (default: 30; 0: do not)")
    _memory_limit(add)


def _text(add: Callable[..., Any]) -> None:
    add("--attentions", metavar="NAME,...|all", help="default: those of the paper's table 5")
    add("--lengths", type=_numbers, metavar="N,N,...", help="default: 1000,2000,3000,4000")
    add("--batch", type=_positive, help="sequences (default: 2; the paper's is 32)")
    add("--width", type=_positive, help="default: 256")
    add("--device", help="cpu or cuda (default: cpu)")
    _memory_limit(add)


def _long(add: Callable[..., Any]) -> None:
    add("--lengths", type=_numbers, metavar="N,N,...", help="default: 16384,65536,262144,1048576")
    add("--piece", type=_positive, help="tokens of a piece (default: 16,384)")
    add(
        "--whole-up-to",
        type=_positive,
        metavar="N",
        help="longest sequence in one go on one process (default: 262,144)",
    )
    add(
        "--memory-only",
        action="store_true",
        default=None,
        help="one step of each and no timing: also on a busy machine",
    )
    add("--softmax-up-to", type=_positive, metavar="N", help="longest for softmax attention (default: 65,536)")


def _memory_limit(add: Callable[..., Any]) -> None:
    text = "of one model's step; above it the step is left out (default: 70 %% of what is free)"
    add("--memory-limit", dest="memory_limit_gb", type=float, metavar="GB", help=text)


def _some_numbers(text: str) -> tuple[int, ...]:
    return _numbers(text) if text else ()


def _numbers(text: str) -> tuple[int, ...]:
    """``"512,2048"``, for argparse."""
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: whole numbers with commas, like 1024,4096") from None
    if found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers start at 1")
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1")
    return int(text)


_QUIET = "The contestants take turns; run it on a quiet machine."
BENCHES: dict[str, Bench] = {
    "attention": Bench(
        "the operator against torch's attention; the zoo against the length",
        "Every number is a ratio within one run, the median of repeats that take turns, with its quartiles. Float32, one "
        "sequence, 8 heads of 64 channels. Run it on a quiet machine.",
        9,
        _attention,
        "fewer lengths and repeats: a minute instead of several",
    ),
    "peers": Bench(
        "each attention against the independent package of the same method",
        "Forward pass at 4,096 tokens, 8 heads of 64 channels, float32: time of ours over time of the package's; below 1 ours is "
        f"faster. Where the package brings projections, ours has them too. {_QUIET}",
        7,
    ),
    "native": Bench(
        "the compiled kernels against the machine's limit",
        "Times of the kernels in multiples of the time that matrix products of as many operations take, by shape; bfloat16 "
        f"against float32; one token. {_QUIET}",
        15,
        _native,
        "the shorter length and 5 repeats",
    ),
    "data": Bench(
        "generators and preparation",
        "Generators on all cores, in rows per second; BPE preparation as a share of the tokenizers library's rate.",
        5,
        _data,
    ),
    "generate": Bench(
        "time and memory a token, with a state and with a key-value cache",
        "Milliseconds and state bytes per generated token by context length, in one model of 2 layers of width 512 with 8 heads "
        "(float32, one sequence; softmax's cache grows by copying, as transformers' DynamicCache does), and a run of the model's "
        "own step loop in a small model. Needs cosformer[hf].",
        9,
        _generate,
        "short lengths and a short run: seconds",
    ),
    "decode": Bench(
        "a token of a linearized model at growing contexts, against the model it was made of",
        "Milliseconds of one token and megabytes of the cache behind a filled context (random numbers, no prefill), float32, one "
        f"sequence. Past the length that a model was made for it is timed, not meant to be used. {_QUIET} Needs cosformer[hf].",
        9,
        _decode,
    ),
    "train": Bench(
        "tokens per second of each attention in a small language model; the engine",
        "A whole update (forward, loss, backward, Adam) of a byte-level language model of 4 layers with 4 heads, float32, no "
        "dropout, against the same model with torch's softmax attention; each timed update follows an untimed one of the same "
        f"model. {_QUIET} Needs cosformer[hf].",
        5,
        _train,
        "short lengths, small batches, three repeats",
    ),
    "jax": Bench(
        "the JAX operator beside torch's kernels and JAX's softmax attention",
        "Time of cosformer.jax, compiled by XLA, over that of torch's native kernels and of jax.nn.dot_product_attention: float32, "
        f"one sequence, 8 heads of 64 channels; and its memory by length. {_QUIET} Needs cosformer[jax].",
        5,
        _jax,
        "one length, three repeats",
    ),
    "long": Bench(
        "a training step against the length, to a million tokens: whole, in pieces, over two processes",
        "Tokens a second and peak memory of a step (forward, loss, backward, Adam) of a byte-level causal model of 2 layers of width "
        "128, one sequence, float32: on one process, on one process in pieces that carry the state (full gradients), on two "
        "processes that hold half of the sequence each, and with torch's softmax attention as far as asked. Each in a fresh "
        "process, two processes with half of the threads each. Run it on a quiet machine. Needs cosformer[hf].",
        3,
        _long,
        "short lengths, one repeat",
    ),
    "text": Bench(
        "the paper's table 5: speed and memory on byte-level text, by attention and length",
        "Steps per second and peak memory of the Long-Range Arena's text model (4 layers, 4 heads; no dropout) on random bytes "
        "of full length, beside the paper's, both as multiples of the Transformer's. Ours is torch's fused softmax attention, "
        f"which needs no N x N matrix. {_QUIET} Needs cosformer[hf].",
        5,
        _text,
        "short lengths, three repeats",
    ),
}
