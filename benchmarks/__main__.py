"""``python -m benchmarks NAME``: benchmarks for developers, with the options and tables of ``cosformer bench``."""

import argparse
from pathlib import Path

from cosformer.cli import Parser, exit_code
from cosformer.commands import bench, positive
from cosformer.commands.bench import LIMIT, QUIET, Bench, Option, lengths, some_numbers

PROGRAM = "python -m benchmarks"
BENCHES: dict[str, Bench] = {
    "peers": Bench(
        "each attention against the independent package of the same method",
        "Forward pass at 4,096 tokens, 8 heads of 64 channels, float32: time of ours over time of the package's; below "
        f"1 ours is faster. Where the package brings projections, ours has them too. {QUIET}",
        7,
        {},
    ),
    "native": Bench(
        "the compiled kernels against the machine's limit",
        "Times of the kernels in multiples of the time that matrix products of as many operations take, by shape; "
        f"bfloat16 against float32; one token. {QUIET}",
        15,
        {"--lengths": lengths("default: 4096,16384")},
        "the shorter length and 5 repeats",
    ),
    "against": Bench(
        "this tree against another commit",
        "Time of the operator, a one-token call, a model's token and a training update over the other commit's, in "
        f"processes of their own; below 1 this tree is faster. {QUIET}",
        9,
        {"--revision": Option("the commit to compare with", metavar="COMMIT")},
        "three rounds",
    ),
    "data": Bench(
        "generators and preparation",
        "Generators on all cores, in rows per second; BPE preparation as a share of the tokenizers library's rate.",
        5,
        {
            "--text": Option("text for the BPE part (default: the Python library's sources)", Path, "FILE"),
            "--tokenizer": Option("a tokenizer's files (default: a BPE of 8000 is learnt)", Path, "FOLDER"),
        },
    ),
    "deployment": Bench(
        "one more token in each form of a model that can be deployed",
        "Tokens per second of the shipped model and of one with 88 million parameters in float32, bfloat16, int8 and "
        f"as an ONNX step, and the shipped model's bits per byte. {QUIET} Needs cosformer[train,export].",
        15,
        {"--models": Option("default: shipped,large", metavar="NAME,...")},
        "the shipped model, three repeats",
    ),
    "imports": Bench(
        "what importing costs",
        "Seconds that a new process takes for the operator and its first call above those of torch, and for "
        f"cosformer.hf above those of a model class of transformers. {QUIET} Needs cosformer[hf].",
        15,
        {},
        "three repeats",
    ),
    "jax": Bench(
        "the JAX operator beside torch's kernels and JAX's softmax attention",
        "Time of cosformer.jax, compiled by XLA, over that of torch's native kernels and of "
        "jax.nn.dot_product_attention: float32, one sequence, 8 heads of 64 channels; and its memory by length. "
        f"{QUIET} Needs cosformer[jax].",
        5,
        {
            "--lengths": lengths("default: 1024,4096,16384; '' for none", some_numbers),
            "--memory-lengths": lengths("to measure memory at (default: 16384,65536; '' for none)", some_numbers),
        },
        "one length, three repeats",
    ),
    "text": Bench(
        "the paper's table 5: speed and memory on byte-level text, by attention and length",
        "Steps per second and peak memory of the Long-Range Arena's text model (4 layers, 4 heads; no dropout) on "
        "random bytes of full length, beside the paper's, both as multiples of the Transformer's. Ours is torch's "
        f"fused softmax attention, which needs no N x N matrix. {QUIET} Needs cosformer[hf].",
        5,
        {
            "--attentions": Option("default: those of the paper's table 5", metavar="NAME,...|all"),
            "--lengths": lengths("default: 1000,2000,3000,4000"),
            "--batch": Option("sequences (default: 2; the paper's is 32)", positive),
            "--width": Option("default: 256", positive),
            "--device": Option("cpu or cuda (default: cpu)"),
            "--memory-limit": Option(LIMIT, float, "GB"),
        },
        "short lengths, three repeats",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark; returns the exit code."""
    return exit_code(PROGRAM, lambda: build_parser().parse_args(argv), bench.run)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=PROGRAM, description="Benchmarks of the project itself, as ratios within one run.")
    bench.configure(parser, BENCHES, "benchmarks")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
