"""``cosformer demo``: exactness, speed, training, reading, generation and a report in a few minutes, offline."""

import argparse
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosformer import terminal
from cosformer.output_file import write_output

if TYPE_CHECKING:
    from cosformer.experiment import Experiment

LENGTHS = (1024, 4096, 16384)
HEADS, HEAD_DIM = 8, 64
ATTENTIONS = ("cosformer", "softmax")
LENGTH = 2048  # bytes of a training row, as those that the shipped model was trained on
STEPS = 120
STOPS = (4_096, 65_536, 262_144, 1_000_000)  # bytes read, where memory and speed are shown
# a cautious draw: so small a model loses itself at higher temperatures
WRITING = ["--temperature", "0.5", "--seed", "0", "--max-new-tokens", "500"]
PLAIN_LIMIT = 2e9  # bytes of the N x N matrices up to which plain softmax is run


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="for runs, results and report.html (default: cosformer-demo, numbered)",
    )
    add("--steps", type=int, default=STEPS, help="updates of each of the two language models (default: %(default)s)")
    add("--threads", type=int, default=2, help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    for name in ("threads", "steps"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} {getattr(args, name)}; it must be at least 1")
    folder = new_folder(args.output)
    import torch

    torch.set_num_threads(args.threads)
    start = time.monotonic()
    results = folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    exact = _show_exactness(results)
    _show_speed(results, args.threads)
    left_out = _missing()
    if not left_out:
        _show_training(folder, args.steps, args.threads)
        _show_reading()
        _show_writing()
    _show_report(folder)
    print(f"\n{time.monotonic() - start:.0f} seconds in all, on {args.threads} threads.")
    if left_out:
        print(f"Training, reading, writing and their part of the report were left out: {left_out}")
    if not exact:
        print("Some forms are not exact on this machine: `cosformer check` shows which; please report its output.")
        return 1
    print(
        "Next: `python -m studies.cosformer2022 ledger --dry-run` for the paper's claims, README.md has code to start "
        "with."
    )
    return 0


def new_folder(given: Path | None) -> Path:
    """``given``, which must be empty or not there; or the first free of cosformer-demo, cosformer-demo-2 …"""
    if given is not None:
        if given.exists() and (not given.is_dir() or any(given.iterdir())):
            raise FileExistsError(f"{given} is there already; give another --output, or remove it")
        return given
    names = (Path("cosformer-demo" + (f"-{number}" if number > 1 else "")) for number in range(1, sys.maxsize))
    return next(path for path in names if not path.exists())


def _missing() -> str:
    """What to install before models can be trained and used; empty where all is there."""
    from cosformer.extras import MissingExtra, require

    try:
        for package in ("transformers", "accelerate", "tqdm"):
            require("train", package)
    except MissingExtra as missing:
        return str(missing)
    return ""


def _head(number: int, question: str, text: str) -> None:
    print(terminal.paint(f"{number}. {question}", "bold"), f"{text}\n", flush=True)


# --- 1. exact


def _show_exactness(results: Path) -> bool:
    from cosformer.bench import exactness
    from cosformer.commands.check import verdict, versions

    _head(1, "Is it exact?", "Every form against the definition, outputs and gradients.")
    findings = []
    for finding in exactness.measure():
        terminal.status(f"{finding.form} ({finding.backend}, {finding.dtype})")
        findings.append(finding.as_dict())
    terminal.status("")
    print(verdict(findings), "\n")
    passed = all(finding["passed"] for finding in findings)
    check = {"versions": versions(), "device": "cpu", "exactness": findings, "passed": passed}
    _write(results / "check.json", check)
    return passed


# --- 2. fast


def _show_speed(results: Path, threads: int) -> None:
    from cosformer import machine
    from cosformer.bench.attention import forward
    from cosformer.extras import MissingExtra
    from cosformer.report.charts import benchmark_charts
    from cosformer.report.measurements import Results

    _head(2, "Is it fast?", f"Causal attention, {HEADS} heads of {HEAD_DIM} channels, float32, no gradients.")
    found, lines, times = [], [], []
    for n in LENGTHS:
        (m,) = forward(n, "causal", backend="auto", repeats=3, baselines=False)
        found.append(m)
        softmax, ours = (float(f"{x or 0.0:.3g}") for x in (m.baseline_milliseconds, m.milliseconds))
        times.append((softmax, ours))
        memory = [_megabytes(_peak(kind, n, threads)) for kind in ("cosformer", "fused", "plain")]
        lines.append([f"{n:,}", f"{ours:,g} ms", f"{softmax:,g} ms", f"{softmax / ours:.1f}x", *memory])
    terminal.status("")
    header = ["tokens", "cosFormer", "softmax (torch SDPA)", "faster by", "peak MB: cosFormer", "SDPA", "plain softmax"]
    print(terminal.table(header, lines), "\n")
    softmax_growth, growth = (last / first for first, last in zip(times[0], times[-1], strict=True))
    print(
        f"From {LENGTHS[0]:,} to {LENGTHS[-1]:,} tokens, {LENGTHS[-1] / LENGTHS[0]:g} times as many, cosFormer took "
        f"{growth:.0f} times as long and softmax attention {softmax_growth:.0f} times."
    )
    settings = {"repeats": 3, "backend": "auto", "batch": 1, "heads": HEADS, "channels": HEAD_DIM}
    about: dict[str, Any] = {"machine": machine.describe(threads), **machine.provenance(["demo"])}
    measured = Results(benchmark="attention", settings=settings, measurements=tuple(found), **about)
    write_output(results / "attention.json", measured.json())
    try:
        (chart,) = benchmark_charts(measured)
        print(f"The plot: {chart.save(results.parent)}\n")
    except MissingExtra as error:
        print(f"No plot: {error}\n")


def _peak(kind: str, n: int, threads: int) -> int | None:
    """Peak bytes above the inputs; None: not run, or not measured on this system."""
    from cosformer.bench.measure import in_fresh_process

    if kind == "plain" and 2 * 4 * HEADS * n * n > PLAIN_LIMIT:
        return None
    terminal.status(f"memory of {kind}, N={n:,}")
    try:
        return in_fresh_process("cosformer.commands.demo:peak", threads, kind=kind, n=n)
    except RuntimeError:  # no /proc, as on a Mac
        return None


def peak(kind: str, n: int) -> int:
    """Runs in a fresh process: bytes of one forward pass above its inputs."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from cosformer.bench.measure import peak_above_now
    from cosformer.ops.operator import cosformer_attention

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        return torch.softmax((q @ k.mT / HEAD_DIM**0.5).masked_fill_(hidden, -torch.inf), -1) @ v

    forms: dict[str, Callable[..., Tensor]] = {
        "cosformer": lambda q, k, v: cosformer_attention(q, k, v, causal=True, max_len=n),
        "fused": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "plain": plain,
    }
    with torch.no_grad():
        forms[kind](*(torch.randn(1, HEADS, 64, HEAD_DIM) for _ in range(3)))  # libraries that load at the first call
        inputs = [torch.randn(1, HEADS, n, HEAD_DIM) for _ in range(3)]
        return peak_above_now(lambda: forms[kind](*inputs))


def _megabytes(found: int | None) -> str:
    return "not run" if found is None else f"{found / 1e6:,.0f}"


# --- 3. trained


def _show_training(folder: Path, steps: int, threads: int) -> None:
    from cosformer.runs import read_run
    from cosformer.train import train

    words = f"A small model of Python's own sources, {LENGTH:,} bytes at a time, trained once with each attention."
    _head(3, "Does it learn?", words)
    rows, speeds, base = [], [], 0.0
    for name in ATTENTIONS:
        train(demo_experiment(name, steps, threads), folder / "runs" / name, quiet=not sys.stderr.isatty())
        run, _ = read_run(folder / "runs" / name)
        if run is None or not run.finished:
            raise KeyboardInterrupt  # it was asked to stop
        speeds.append(statistics.median(speed for _, speed in run.train_curve("tokens_per_second")))
        scores, base = run.scores["test"], run.baseline["test"]["score"] / math.log(2)
        rows.append(
            [name, f"{speeds[-1]:,.0f}", f"{run.train_loss[0][1] / math.log(2):.2f}", f"{scores['bits_per_byte']:.2f}"]
        )
    print(terminal.table(["attention", "bytes a second", "bits a byte at first", "held out, at the end"], rows))
    print(
        f"\nGuessing bytes by how frequent they are takes {base:.2f} bits. At this length cosFormer does "
        f"{speeds[0] / speeds[1]:.1f} times as many bytes a second.\n{steps} updates are a beginning; what an hour of "
        "them makes of it comes below.\n"
    )


def demo_experiment(attention: str, steps: int, threads: int) -> "Experiment":
    """The recipe ``lm-stdlib-small`` with longer rows, shortened to ``steps`` updates."""
    from dataclasses import replace

    from cosformer.recipes import recipe

    plain = recipe("lm-stdlib-small")
    rhythm = {"eval_every": steps, "save_every": steps, "log_every": max(1, steps // 30), "warmup": steps // 10}
    train = replace(plain.train, steps=steps, batch=2, eval_batch=2, threads=threads, tracker="none", **rhythm)
    data, model = replace(plain.data, length=LENGTH, eval_rows=16), replace(plain.model, attention=attention)
    return replace(plain, data=data, model=model, train=train)


# --- 4. reading, and 5. writing, with the model that comes with the package


def _show_reading() -> None:
    import torch

    from cosformer.bench.reading import lengthened, read
    from cosformer.data import load_dataset
    from cosformer.shipped import STDLIB_MODEL
    from cosformer.train import load_model

    _head(4, "How far can it read?", f"{STOPS[-1]:,} bytes of source text, with a state of constant size.")
    model = lengthened(load_model(STDLIB_MODEL), STOPS[-1])  # pyright: ignore[reportArgumentType]
    text = load_dataset("python", max_bytes=2 * max(STOPS[-1], 100_000)).splits["train"].tokens.flat[: STOPS[-1]]
    rows = []
    terminal.status(f"reading {len(text):,} bytes ...")
    for r in read(model, torch.from_numpy(text.astype("int64")), STOPS):
        grown = "not measured" if r.process is None else f"{r.process / 1e6:,.1f} MB"
        sizes = [f"{r.state / 1e6:,.2f} MB", grown, f"{r.key_value / 1e6:,.0f} MB"]
        rows.append([f"{r.tokens:,}", f"{r.per_second:,.0f}", *sizes])
        terminal.status(f"reading {len(text):,} bytes, {r.tokens:,} done ...")
    terminal.status("")
    header = ["bytes read", "bytes a second", "the state", "the process grew", "a key-value cache would take"]
    print(terminal.table(header, rows))
    print(
        f"\nThe weights are those of the next part, which learned from rows of {LENGTH:,} bytes: at this length the "
        "table shows time and memory, not quality.\n"
    )


def _show_writing() -> None:
    from cosformer.commands import generate

    what = (
        "The model that is included in this package was trained for less than an hour on one core, on the sources "
        "of Python's library."
    )
    what += " It has learned what Python looks like, not what it means."
    _head(5, "Does it write?", f"{what}\n\n$ cosformer generate {shlex.join(WRITING)}")
    parser = argparse.ArgumentParser()
    generate.configure(parser)
    generate.run(parser.parse_args(WRITING))
    print()


# --- 6. the report


def _show_report(folder: Path) -> None:
    from cosformer.bench.runner import tables
    from cosformer.report.page import write_report

    _head(6, "Show me.", "One page with all of this, for a browser.")
    runs = [folder / "runs"] if (folder / "runs").is_dir() else []
    for problem in write_report(folder / "report.html", runs, folder / "results", tables):
        print(f"skipped: {problem}", file=sys.stderr)
    print((folder / "report.html").resolve())


def _write(path: Path, document: dict[str, Any]) -> None:
    write_output(path, json.dumps(document, indent=1) + "\n")
