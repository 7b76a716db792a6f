"""``cosformer demo``: the whole story in a few minutes, with no download: exact, fast, trained, generating, and a report."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cosformer import terminal

if TYPE_CHECKING:
    from cosformer.experiment import Experiment

LENGTHS = (1024, 4096, 16384)
HEADS, HEAD_DIM = 8, 64
ATTENTIONS = ("cosformer", "softmax")
STEPS = 200
PROMPT = "def "
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
    left_out = _train_and_generate(folder, args.steps, args.threads)
    _show_report(folder)
    print(f"\n{time.monotonic() - start:.0f} seconds in all, on {args.threads} threads.")
    for line in left_out:
        print(line)
    if not exact:
        print("Some forms are not exact on this machine: `cosformer check` shows which; please report its output.")
        return 1
    print("Next: `cosformer reproduce ledger --dry-run` for the paper's claims, README.md has code to start with.")
    return 0


def new_folder(given: Path | None) -> Path:
    """``given``, which must be empty or not there; or the first free of cosformer-demo, cosformer-demo-2 …"""
    if given is not None:
        if given.exists() and (not given.is_dir() or any(given.iterdir())):
            raise FileExistsError(f"{given} is there already; give another --output, or remove it")
        return given
    names = (Path("cosformer-demo" + (f"-{number}" if number > 1 else "")) for number in range(1, sys.maxsize))
    return next(path for path in names if not path.exists())


def _head(number: int, question: str, text: str) -> None:
    print(terminal.paint(f"{number}. {question}", "bold"), f"{text}\n", flush=True)


# --- 1. exact


def _show_exactness(results: Path) -> bool:
    from cosformer.commands.check import verdict, versions
    from cosformer.lab.bench import exactness

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
    from cosformer.extras import MissingExtra
    from cosformer.lab.bench.attention import forward
    from cosformer.lab.records import Results
    from cosformer.lab.render.result_figures import operator_times

    _head(2, "Is it fast?", f"Causal attention, {HEADS} heads of {HEAD_DIM} channels, float32, no gradients.")
    found, lines, times = [], [], []
    for n in LENGTHS:
        (m,) = forward(n, "causal", backend="auto", repeats=3, baselines=False)
        found.append(m)
        softmax, ours = m.baseline_milliseconds or 0.0, m.milliseconds or 0.0
        times.append((softmax, ours))
        memory = [_megabytes(_peak(kind, n, threads)) for kind in ("cosformer", "fused", "plain")]
        lines.append([f"{n:,}", f"{ours:,.1f} ms", f"{softmax:,.1f} ms", f"{softmax / ours:.1f}x", *memory])
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
    (results / "attention.json").write_text(measured.json(), encoding="utf-8")
    try:
        print(f"The plot: {operator_times(measured, 'causal').save(results.parent)}\n")
    except MissingExtra as error:
        print(f"No plot: {error}\n")


def _peak(kind: str, n: int, threads: int) -> int | None:
    """Peak bytes above the inputs; None: not run, or not measured on this system."""
    from cosformer.lab.bench.measure import in_fresh_process

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

    from cosformer.lab.bench.measure import peak_above_now
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


# --- 3. and 4. trained, and generating


def _train_and_generate(folder: Path, steps: int, threads: int) -> list[str]:
    """Returns what was left out for want of a package, with the line that brings it."""
    from cosformer.extras import MissingExtra, require

    _head(3, "Does it learn?", "A byte-level language model on Python's own sources, once with each attention.")
    try:
        for package in ("transformers", "accelerate", "tensorboard", "tqdm"):
            require("train", package)
    except MissingExtra as missing:
        print("Left out.\n")
        return [f"Training, generation and their part of the report were left out: {missing}"]
    runs = {name: folder / "runs" / name for name in ATTENTIONS}
    rows = []
    for name, path in runs.items():
        result = _train(demo_experiment(name, steps, threads), path)
        scores = result["scores"]["test"]
        speed = result["tokens"] / result["seconds"]
        rows.append(
            [
                name,
                f"{scores['loss']:.3f}",
                f"{scores['bits_per_byte']:.3f}",
                f"{result['seconds']:.0f} s",
                f"{speed:,.0f}",
            ]
        )
    base = result["baseline"]["test"]  # pyright: ignore[reportPossiblyUnboundVariable]
    print(terminal.table(["attention", "nats a byte", "bits a byte", "time", "bytes a second"], rows))
    print(
        f"\nGuessing bytes by how frequent they are gives {base['score']:.3f} nats. {steps} updates are a beginning.\n"
    )
    _generate(runs["cosformer"])
    return []


def demo_experiment(attention: str, steps: int, threads: int) -> "Experiment":
    """The recipe ``lm-stdlib-small``, shortened to ``steps`` updates."""
    from dataclasses import replace

    from cosformer.recipes import recipe

    plain = recipe("lm-stdlib-small")
    every = max(1, steps // 4)
    rhythm = {"eval_every": every, "save_every": every, "log_every": max(1, steps // 20), "warmup": steps // 10}
    train = replace(plain.train, steps=steps, threads=threads, tracker="none", **rhythm)
    return replace(plain, model=replace(plain.model, attention=attention), train=train)


def _train(experiment: "Experiment", path: Path) -> dict[str, Any]:
    from cosformer.train import train

    result = train(experiment, path)
    if "scores" not in result:
        raise KeyboardInterrupt
    return result


def _generate(run: Path) -> None:
    """Write some text with the trained model, and show that its memory does not grow."""
    from cosformer.train import load_model

    _head(4, "Does it write?", "Byte by byte, from a state of constant size.")
    model = load_model(run)
    sizes = []
    sys.stdout.write(PROMPT)
    for piece, size in generate(model, PROMPT, model.config.max_position_embeddings - 1):
        sys.stdout.write(piece)
        sys.stdout.flush()
        sizes.append(size)
    config = model.config
    key_value = 2 * 4 * config.num_hidden_layers * config.hidden_size * (len(PROMPT) + len(sizes))
    print(
        f"\n\nThe state had {sizes[0]:,} bytes after the first byte and {sizes[-1]:,} after {len(sizes)}; a key-value cache"
    )
    print(f"would have {key_value:,} bytes by now, and grow on.\n")


def generate(model: Any, prompt: str, tokens: int) -> Iterator[tuple[str, int]]:
    """Text drawn byte by byte, each with the bytes of the state after it. ``tokens``: with those of the prompt."""
    import torch

    from cosformer.data.vocabulary import Bytes
    from cosformer.models.state_cache import StateCache

    vocabulary = Bytes(special=True)
    generator = torch.Generator().manual_seed(0)
    cache = StateCache(model.config.num_hidden_layers)
    ids = torch.tensor([[model.config.bos_token_id, *Bytes.ids(prompt.encode()).tolist()]])
    with torch.no_grad():
        for _ in range(tokens - ids.shape[1]):
            logits = model(ids, past_key_values=cache).logits[0, -1] / 0.7  # below 1: more cautious
            logits[model.config.eos_token_id] = -torch.inf  # go on past the end of a file
            ids = torch.multinomial(logits.softmax(-1), 1, generator=generator)[None]
            yield vocabulary.decode(ids[0].numpy()), cache.nbytes


# --- 5. the report


def _show_report(folder: Path) -> None:
    from cosformer.lab.render import write_report

    _head(5, "Show me.", "One page with all of this, for a browser.")
    runs = [folder / "runs"] if (folder / "runs").is_dir() else []
    for problem in write_report(folder / "report.html", runs, folder / "results"):
        print(f"skipped: {problem}", file=sys.stderr)
    print((folder / "report.html").resolve())


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
