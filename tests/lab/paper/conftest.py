"""Made-up runs, and a stand-in for ``cosformer train`` that writes such runs in no time."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig

FAKE_TRAIN = """
import json, pathlib, signal, sys, time
words = sys.argv[1:]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
option = lambda name: words[words.index(name) + 1]
run = pathlib.Path(words[1] if words[0] == "resume" else option("--run"))
if words[0] == "train":
    experiment = json.loads((run.parent / "recipes.json").read_text())[words[1]]
    experiment["model"]["attention"] = option("--model.attention")
    experiment["train"]["seed"] = int(option("--train.seed"))
    experiment["start"] = option("--start") if "--start" in words else None
    run.mkdir()
    (run / "experiment.json").write_text(json.dumps(experiment))
experiment = json.loads((run / "experiment.json").read_text())
steps = experiment["train"]["steps"]
metrics = run / "metrics.jsonl"
done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
attention = experiment["model"]["attention"]
(run / "run.json").write_text(json.dumps({"status": "running"}))
if attention == "missing_data":
    print("no data here"); sys.exit(2)
for step in range(done + 1, steps + 1):
    time.sleep(0.02)
    with metrics.open("a") as file:
        file.write(json.dumps({"kind": "train", "step": step, "loss": 1 / step}) + "\\n")
    if attention == "identity" and step == 2:
        reason = "the loss is not a number at update 2"
        (run / "run.json").write_text(json.dumps({"status": "failed", "reason": reason, "cpu_seconds": 1.5, "machine": {"cpu": "made up"}}))
        sys.exit(1)
    if stopped:
        (run / "run.json").write_text(json.dumps({"status": "stopped"}))
        sys.exit(0)
result = {"score": "loss", "scores": {"test": {"loss": 0.5}}, "baseline": {"test": {"name": "unigram", "score": 1.0, "error": 0.1}},
          "learned": {"test": True}, "seconds": 2.5, "cpu_seconds": 2.0, "machine": {"cpu": "made up"}, "command": "cosformer " + " ".join(words)}
(run / "result.json").write_text(json.dumps(result))
(run / "run.json").write_text(json.dumps({"status": "done"}))
"""


def tiny(recipe: str, task: str = "lm", steps: int = 3) -> Experiment:
    return Experiment(
        recipe, task, DataConfig("python"), ModelConfig("tiny"), TrainConfig(steps=steps, batch=1, lr=0.1)
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Call it with recipes (name=steps): their cells train with the stand-in, into the folder it returns."""

    def install(**steps: int) -> Path:
        recipes = {name.replace("_", "-"): tiny(name.replace("_", "-"), steps=count) for name, count in steps.items()}
        script = tmp_path / "train.py"
        script.write_text(FAKE_TRAIN)
        runs = tmp_path / "runs"
        runs.mkdir()
        (runs / "recipes.json").write_text(json.dumps({k: dataclasses.asdict(v) for k, v in recipes.items()}))
        monkeypatch.setattr("cosformer.lab.paper.cells.recipe", recipes.__getitem__)
        monkeypatch.setattr("cosformer.lab.paper.queue.launcher", lambda processes: [str(script)])
        monkeypatch.setattr("cosformer.lab.paper.queue.POLL_SECONDS", 0.01)
        return runs

    return install
