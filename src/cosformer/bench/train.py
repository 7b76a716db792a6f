"""``cosformer bench train``: tokens per second of each attention in a small model; the engine's overhead."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from cosformer import terminal
from cosformer.bench.measure import compared
from cosformer.bench.steps import allowed_bytes, language_model, random_bytes, timed, training_step
from cosformer.bench.tables import SPREAD, lengths_of, rest
from cosformer.bench.zoo import names
from cosformer.experiment import METRICS_FILE, DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.extras import require
from cosformer.json_files import read_lines
from cosformer.ops.backends import check_backend
from cosformer.report.measurements import Measurement, Results, cell
from cosformer.report.table import Table
from cosformer.tasks import build_task
from cosformer.train import start_model, train

QUICK = {"lengths": (512, 2048), "tokens": 4096, "repeats": 3}
SIZES: dict[str, Any] = {"layers": 4, "heads": 4, "hidden_act": "relu"}  # the paper's language model has relu too
BASELINE = "softmax"
ENGINE_ROWS, ENGINE_LENGTH = 4, 512  # small batches: the engine's share of an update is largest there
LOG_EVERY = 5
ENGINE_ROUNDS = 3
_BUDGET = 180.0  # seconds of one length's repeats, once there are three
Variant = tuple[str, str]  # an attention and, of cosFormer, its backend ("": the best)


def measurements(
    *,
    attentions: str = "cosformer",
    backends: str = "plain",
    lengths: Sequence[int] = (512, 2048, 8192),
    width: Sequence[int] = (256,),
    tokens: int = 16_384,
    repeats: int = 5,
    threads: int = 2,
    memory_limit: float | None = None,
    engine_steps: int = 30,
) -> Iterator[Measurement]:
    require("hf", "transformers")
    chosen = variants(attentions, backends)
    if max(lengths) > tokens:
        raise ValueError(f"--lengths {max(lengths)} with {tokens} tokens a batch: no sequence fits; raise --tokens")
    limit = allowed_bytes(memory_limit)
    for channels in width:
        for n in lengths:
            yield from at_length(n, chosen, width=channels, tokens=tokens, repeats=repeats, memory=limit)
    if engine_steps > 0:
        yield engine_update(engine_steps, threads=threads)


def variants(attentions: str, backends: str) -> list[Variant]:
    """What is measured besides softmax: attentions by name, and cosFormer on further backends."""
    chosen = [(name, "") for name in names(attentions) if name != BASELINE]
    extra = [name.strip() for name in backends.split(",") if name.strip()]
    for name in extra:
        check_backend(name)
    return [*chosen, *(("cosformer", name) for name in extra if ("cosformer", "") in chosen)]


def at_length(
    n: int, chosen: Sequence[Variant], *, width: int, tokens: int, repeats: int, memory: int
) -> Iterator[Measurement]:
    """All variants at length ``n``; they and softmax take turns."""
    builds = {
        f"{name}:{backend}": lambda a=name, b=backend: training_step(*model_and_batch(a, b, n, width, tokens))
        for name, backend in ((BASELINE, ""), *chosen)
    }
    # training repeats one model's update: memory that another one left behind is not part of it
    times, notes = timed(builds, memory, repeats=repeats, budget=_BUDGET, settle=True)
    softmax = f"{BASELINE}:"
    for name, backend in chosen:
        label, place = f"{name}:{backend}", {"attention": name, "backend": backend, "width": width, "length": n}
        m = Measurement(kind="training", **place, baseline=BASELINE, unit="times softmax", better="higher")
        if label not in times:
            yield replace(m, note=notes[label])
        else:
            note = f"softmax: {notes[softmax]}" if softmax not in times else ""
            yield replace(compared(m, times[label], times.get(softmax)), note=note)


def model_and_batch(attention: str, backend: str, n: int, width: int, tokens: int) -> tuple[Any, dict[str, Any]]:
    """The model and a batch of random bytes of ``tokens`` tokens in rows of ``n``."""
    options = {"backend": backend} if backend else None
    model = language_model(attention, n, width=width, **SIZES, attention_options=options)
    return model, random_bytes(max(1, tokens // n), n)


# --- the engine


def engine_update(steps: int, *, threads: int) -> Measurement:
    """The engine's seconds per update relative to a bare loop on the same model and data, interleaved."""
    if steps < 2 * LOG_EVERY:
        raise ValueError(f"{steps} updates of the engine are too few to time; at least {2 * LOG_EVERY}")
    experiment = _experiment(steps, threads)
    engine, bare = [], []
    for turn in range(ENGINE_ROUNDS):
        terminal.status(f"the engine against a bare loop, turn {turn + 1} of {ENGINE_ROUNDS} ...")
        engine.append(_engine(experiment))
        bare.append(_bare(experiment))
    sizes: dict[str, Any] = {"length": ENGINE_LENGTH, "batch": ENGINE_ROWS}
    m = Measurement(kind="engine update", **sizes, attention="cosformer", unit="times", better="lower")
    return compared(replace(m, baseline="a bare loop"), engine, bare)


def _experiment(steps: int, threads: int) -> Experiment:
    """The benchmark's language model on the sources of the Python library; scored and saved once, at the end."""
    plain = {"adaptive_cutoffs": None, "activation_dropout": 0.0, "final_norm": True, "hidden_act": "gelu"}
    sizes: dict[str, Any] = {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "hidden_dropout_prob": 0.0,
    }
    rhythm: dict[str, Any] = {"steps": steps, "log_every": LOG_EVERY, "eval_every": steps, "save_every": steps}
    learning = TrainConfig(**rhythm, batch=ENGINE_ROWS, lr=1e-4, schedule="constant", tracker="none", threads=threads)
    data = DataConfig("python", length=ENGINE_LENGTH, eval_rows=1)
    return Experiment("bench-engine", "lm", data, ModelConfig("adaptive_lm", **sizes, fields=plain), learning)


def _engine(experiment: Experiment) -> float:
    """Seconds per update, from the metrics: behind the first interval, which warms up, up to the last update."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(experiment, run, quiet=True)
        lines, _ = read_lines(run / METRICS_FILE)
    seen = [(line["step"], line["seconds"]) for _, line in lines if line["kind"] == "train"]
    (first, start), (last, end) = seen[0], seen[-1]
    return (end - start) / (last - first)


def _bare(experiment: Experiment) -> float:
    """Seconds per update of the shortest loop that one would write, over the same updates."""
    task = build_task(experiment)
    model = start_model(task, experiment).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=experiment.train.lr, weight_decay=0.0, fused=True)
    tokens = torch.from_numpy(task.dataset.splits["train"].tokens.flat[:].astype("int64"))
    start = 0.0
    for step in range(experiment.train.steps):
        if step == LOG_EVERY:
            start = time.monotonic()
        firsts = torch.randint(0, len(tokens) - ENGINE_LENGTH, (ENGINE_ROWS,)).tolist()
        ids = torch.stack([tokens[first : first + ENGINE_LENGTH] for first in firsts])
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        if not torch.isfinite(loss):
            raise RuntimeError(f"the bare loop's loss is {float(loss)} at update {step}")
    return (time.monotonic() - start) / (experiment.train.steps - LOG_EVERY)


def tables(results: Results) -> list[Table]:
    """For each width a table by attention and length."""
    shown, tokens, made = results.find(kind="training"), results.settings["tokens"], []

    def speed(milliseconds: float | None) -> str:
        return "" if milliseconds is None else f"{1e3 * tokens / milliseconds:,.0f}"

    for width in sorted({m.width or 0 for m in shown}):
        of_width = [m for m in shown if m.width == width]
        lengths = lengths_of(of_width)
        softmax = [next((m.baseline_milliseconds for m in of_width if m.length == n), None) for n in lengths]
        rows = [["softmax", *["1" for _ in lengths], *map(speed, softmax)]]
        for name, backend in dict.fromkeys((m.attention, m.backend) for m in of_width):
            line = [m for n in lengths for m in of_width if (m.attention, m.backend, m.length) == (name, backend, n)]
            label = f"{name} ({backend})" if backend else name
            rows.append([label, *map(cell, line), *(speed(m.milliseconds) for m in line)])
        title = (
            f"Training a language model of 4 layers of width {width} with 4 heads on {tokens:,} tokens a batch: tokens "
            f"per second by length, as a multiple of those with softmax attention (torch's SDPA; {SPREAD}) and as such."
        )
        header = ["attention", *(f"{n:,}" for n in lengths), *(f"tokens/s at {n:,}" for n in lengths)]
        made.append(Table(title, header, rows))
    return [*made, rest(results, shown)]
