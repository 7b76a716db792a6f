"""What the training engine costs: its seconds per update over those of a bare loop on the same model and data."""

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from cosformer import terminal
from cosformer.experiment import METRICS_FILE, DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.json_files import read_lines
from cosformer.lab.bench.measure import compared
from cosformer.lab.records import Measurement
from cosformer.tasks import build_task
from cosformer.train import start_model, train

ROWS, LENGTH = 4, 512  # small batches: the engine's share of an update is largest there
LOG_EVERY = 5
ROUNDS = 3


def measurement(steps: int, *, threads: int) -> Measurement:
    """Runs of ``steps`` updates by the engine and by the loop in turn."""
    if steps < 2 * LOG_EVERY:
        raise ValueError(f"{steps} updates of the engine are too few to time; at least {2 * LOG_EVERY}")
    experiment = _experiment(steps, threads)
    engine, bare = [], []
    for turn in range(ROUNDS):
        terminal.status(f"the engine against a bare loop, turn {turn + 1} of {ROUNDS} ...")
        engine.append(_engine(experiment))
        bare.append(_bare(experiment))
    m = Measurement(
        kind="engine update", attention="cosformer", length=LENGTH, batch=ROWS, unit="times", better="lower"
    )
    return compared(replace(m, baseline="a bare loop"), engine, bare)


def _experiment(steps: int, threads: int) -> Experiment:
    """The benchmark's language model on the sources of the Python library; scored and saved once, at the end."""
    return Experiment(
        recipe="bench-engine",
        task="lm",
        data=DataConfig("python", length=LENGTH, eval_rows=1),
        model=ModelConfig(
            "adaptive_lm", layers=4, width=256, heads=4, feed_forward=1024, dropout=0.0, fields=_PLAIN_VOCABULARY
        ),
        train=TrainConfig(
            steps=steps,
            batch=ROWS,
            lr=1e-4,
            schedule="constant",
            log_every=LOG_EVERY,
            eval_every=steps,
            save_every=steps,
            tracker="none",
            threads=threads,
        ),
    )


_PLAIN_VOCABULARY = {"adaptive_cutoffs": None, "activation_dropout": 0.0, "final_norm": True, "hidden_act": "gelu"}


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
        firsts = torch.randint(0, len(tokens) - LENGTH, (ROWS,)).tolist()
        ids = torch.stack([tokens[first : first + LENGTH] for first in firsts])
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        if not torch.isfinite(loss):
            raise RuntimeError(f"the bare loop's loss is {float(loss)} at update {step}")
    return (time.monotonic() - start) / (experiment.train.steps - LOG_EVERY)
