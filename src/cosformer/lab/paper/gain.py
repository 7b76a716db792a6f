"""What the native kernels bring: the README's table of speed before and after, from the benchmarks' result files."""

from pathlib import Path
from typing import Any

from cosformer.lab.bench.results import DIFFERENCE, Row, read, rows_of
from cosformer.lab.bench.table import cell
from cosformer.lab.paper.verdict import NOT_RUN

MARKER = "speed"
LENGTHS = (1024, 4096, 16384)
TRAINING_WIDTH, TRAINING_LENGTHS = 256, (512, 2048, 8192)


def readme_part(folder: Path) -> str:
    """The table between the README's markers, from ``attention-chunked.json``, ``attention.json`` and ``train.json``."""
    before, after, train = (_read(folder / f"{name}.json") for name in ("attention-chunked", "attention", "train"))
    lines = [
        "| times as fast as softmax attention (median and quartiles) | before: plain PyTorch | after: native kernel |",
        "| --- | ---: | ---: |",
    ]
    for mode in ("causal", "non-causal"):
        for n in LENGTHS:
            name = f"forward/{mode}/{n}/sdpa"
            lines.append(f"| {mode} forward pass, {n:,} tokens | {_cell(before, name)} | {_cell(after, name)} |")
    for n in TRAINING_LENGTHS:
        name = f"train/{TRAINING_WIDTH}/{n}/cosformer"
        lines.append(f"| training, {n:,} tokens | {_cell(train, f'{name}:chunked')} | {_cell(train, name)} |")
    about = (
        "Forward: time of torch's `scaled_dot_product_attention` over ours, 8 heads of 64 channels. Training: tokens per second "
        f"over those of the same small language model (width {TRAINING_WIDTH}) with softmax attention."
    )
    sources = _sources([found for found in (before, after, train) if found is not None])
    return "\n\n".join(part for part in ("\n".join(lines), f"{about} {sources}", _short(after)) if part)


def _short(found: dict[str, Any] | None) -> str:
    """Where cosFormer starts to be the faster one, in one sentence; "" where that was not measured."""
    rows = [row for row in rows_of(found) if row.id.endswith("/sdpa")] if found else []
    forward = [
        (int(row.id.split("/")[2]), row) for row in rows if row.id.startswith("forward/") and row.value is not None
    ]
    extra = [row.value or 0.0 for _, row in forward if row.unit == DIFFERENCE]
    ratios = [(n, row.low or 0.0) for n, row in forward if row.unit != DIFFERENCE]
    if not extra or not ratios:
        return ""
    slower = [n for n, low in ratios if low <= 1]
    faster = [n for n, _ in ratios if n > max(slower, default=0)]
    start = f"from {min(faster):,} on cosFormer is" if faster else "cosFormer is at none of the lengths measured"
    return (
        f"Below {min(n for n, _ in ratios)} tokens softmax is up to {max(extra) / 1e3:.2f} ms a call faster; {start}."
    )


def _read(path: Path) -> dict[str, Any] | None:
    return read(path) if path.exists() else None


def _cell(found: dict[str, Any] | None, name: str) -> str:
    rows: dict[str, Row] = {row.id: row for row in rows_of(found)} if found else {}
    return cell(rows[name]) if name in rows else NOT_RUN


def _sources(results: list[dict[str, Any]]) -> str:
    """Commands, dates and machines, in one sentence."""
    if not results:
        return "Not run."
    commands, machines = [], []
    for found in results:
        m = found["machine"]
        commit = f", commit {found['commit']}" if found.get("commit") else ""
        commands.append(f"`{found['command']}` ({found['date']}{commit})")
        machines.append(f"{m['cpu']} ({m['instructions']}), {m['threads']} threads, torch {m['torch']}")
    return f"Measured with {', '.join(commands)}: {'; '.join(dict.fromkeys(machines))}."
