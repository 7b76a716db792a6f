"""Made-up runs, as lines and as folders; ``python tests/report/made_up.py FOLDER one|thirty|broken`` shows them."""

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig

STEPS = 400
SPLITS = ("valid", "test")


def run_line(
    recipe: str, attention: str, seed: int, scores: dict[str, float], base: float, /, **more: Any
) -> dict[str, Any]:
    """A line of runs.jsonl: a finished run with these scores, and a baseline of ``base``."""
    values = {"recipe": recipe, "task": "lm", "attention": attention, "seed": seed, "status": "done", "reason": None}
    values |= {"score": next(iter(scores)), "scores": dict.fromkeys(SPLITS, scores)}
    values |= {"baseline": {split: {"name": "unigram", "score": base, "error": 0.01} for split in SPLITS}}
    values |= {"learned": dict.fromkeys(SPLITS, True), "cpu_seconds": 61.2, "machine": {"cpu": "made up"}}
    return values | {"command": f"cosformer train {recipe} --model.attention {attention}"} | more


def experiment(recipe: str, attention: str, seed: int = 0, steps: int = 100, layers: int = 4) -> Experiment:
    return Experiment(
        recipe=recipe,
        task="lm",
        data=DataConfig("python", {"max_bytes": 4_000_000}, length=256),
        model=ModelConfig("adaptive_lm", attention=attention, num_hidden_layers=layers, hidden_size=128),
        train=TrainConfig(steps=steps, batch=16, lr=1e-3, seed=seed),
        note="A small byte-level model of the standard library's sources.",
    )


def write_run(run: Path, made: Experiment, metrics: list[dict], result: dict[str, Any] | None, **info: Any) -> Path:
    """The folder of a run. ``info``: fields of run.json; without a ``result`` it has not come to one."""
    run.mkdir(parents=True)
    (run / "experiment.json").write_text(made.to_json())
    (run / "run.json").write_text(json.dumps({"status": "done"} | info))
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    if result is not None:
        (run / "result.json").write_text(json.dumps(result))
    return run


def write(
    folder: Path,
    name: str,
    *,
    attention: str = "cosformer",
    seed: int = 0,
    steps: int = STEPS,
    layers: int = 4,
    **more: Any,
) -> Path:
    """A byte-level language model. ``more``: fields of run.json; a ``status`` other than done leaves no result."""
    chance = random.Random(f"{attention} {seed} {steps} {layers}")
    end = 1.9 + {"softmax": 0.05, "cosformer": 0.0}.get(attention, 0.2) - 0.03 * layers - 0.1 * math.log(steps / STEPS)
    done = more.get("steps_done", steps)
    lines = []
    for step in range(20, done + 1, 20):
        loss = end + 3.6 * math.exp(-step / 60) + chance.gauss(0, 0.02)
        lines.append({"kind": "train", "step": step, "loss": loss})
        if step % 100 == 0:
            scores = {"loss": loss + 0.05, "bits_per_byte": (loss + 0.05) / math.log(2)}
            lines.append({"kind": "eval", "step": step, "name": "valid", "scores": scores})
    command = f"cosformer train lm-stdlib-small --model.attention {attention} --train.seed {seed} --train.steps {steps}"
    info = {"seconds": 90.0 + seed, "command": command, "steps_done": done, "date": "2026-01-02"} | more
    result: dict[str, Any] = {"steps": steps, "learned": dict.fromkeys(SPLITS, True), "baseline": {}, "score": "loss"}
    result["scores"] = {}
    for split in SPLITS:
        loss = end + chance.gauss(0, 0.015)
        words = {"perplexity": math.exp(loss), "word_perplexity": math.exp(loss * 8)}
        result["scores"][split] = {"loss": loss, "error": 0.01, "bits_per_byte": loss / math.log(2), **words}
    made = experiment("lm-stdlib-small", attention, seed, steps, layers)
    return write_run(folder / name, made, lines, None if "status" in more else result, **info)


def maps(run: Path) -> None:
    """Weights of two layers with two heads each, as `cosformer visualize` keeps them."""
    text = "def add(a, b):"
    place = np.arange(len(text))
    away = np.tril(np.exp(-np.abs(place[:, None] - place) / 3.0))
    weights = np.stack([np.stack([away**power / (away**power).sum(1, keepdims=True) for power in (1, 2)])] * 2)
    np.savez(run / "maps.npz", weights=weights, tokens=np.array(list(text)))


def one(folder: Path) -> None:
    maps(write(folder, "first"))


def thirty(folder: Path) -> None:
    for attention in ("cosformer", "softmax", "performer"):
        for seed in range(3):
            write(folder, f"{attention}-{seed}", attention=attention, seed=seed)
            write(folder, f"{attention}-long-{seed}", attention=attention, seed=seed, steps=2 * STEPS)
            write(folder, f"{attention}-deep-{seed}", attention=attention, seed=seed, layers=8)
    for seed in range(3):
        write(folder, f"relu-{seed}", attention="relu", seed=seed)


def broken(folder: Path) -> None:
    """Two whole runs among all that can go wrong."""
    write(folder, "whole")
    write(folder, "whole-softmax", attention="softmax")
    write(folder, "stopped", seed=1, status="stopped", reason="SIGTERM at update 220", steps_done=220)
    full = "CUDA out of memory. Tried to allocate 2 GiB."
    write(folder, "out-of-memory", seed=2, status="failed", reason=full, steps_done=0)
    write(folder, "diverged", seed=3, status="failed", reason="the loss at update 40 is not a number", steps_done=40)
    gone = {"pid": 2**22 + 1, "host": __import__("platform").node(), "process_started": 1}  # above every real number
    write(folder, "killed", seed=4, status="running", steps_done=0, **gone)
    (write(folder, "torn", seed=5) / "result.json").write_text('{"scores": {')
    (folder / "no-experiment").mkdir()
    (folder / "no-experiment" / "experiment.json").write_text("{")


if __name__ == "__main__":
    {"one": one, "thirty": thirty, "broken": broken}[sys.argv[2]](Path(sys.argv[1]))
