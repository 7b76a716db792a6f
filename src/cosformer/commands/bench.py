"""``cosformer bench``: a table of benchmarks, each a module with ``configure(parser)`` and ``run(args) -> exit code``."""

import argparse
from importlib import import_module

# name -> (module, one line for --help). The modules import what is heavy when they run.
BENCHES: dict[str, tuple[str, str]] = {
    "attention": (
        "cosformer.lab.bench.attention",
        "the operator against torch's attention; the zoo against the length",
    ),
    "peers": ("cosformer.lab.bench.peers", "each attention against the independent package of the same method"),
    "native": ("cosformer.lab.bench.native", "the compiled kernels against the machine's limit and their goals"),
    "data": ("cosformer.lab.bench.data", "generators, preparation and batches"),
    "generate": ("cosformer.lab.bench.generate", "time and memory a token, with a state and with a key-value cache"),
    "train": ("cosformer.lab.bench.train", "tokens per second of each attention in a small language model; the engine"),
    "text": (
        "cosformer.lab.bench.text",
        "the paper's table 5: speed and memory on byte-level text, by attention and length",
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    benches = parser.add_subparsers(dest="bench", metavar="BENCHMARK", required=True)
    for name, (module, summary) in BENCHES.items():
        import_module(module).configure(benches.add_parser(name, help=summary, description=summary))


def run(args: argparse.Namespace) -> int:
    return import_module(BENCHES[args.bench][0]).run(args)
