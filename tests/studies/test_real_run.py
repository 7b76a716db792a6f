"""The loop with real trainings of a tiny model: killed midway, it continues from the checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosformer.recipes import RECIPES
from cosformer.train import train
from studies.cosformer2022 import __main__ as study

# the study and `cosformer train` as they are, but for the size of one recipe; with KILL_AT, killed with the loop when
# that update is logged
COSFORMER = """
import os, signal, sys, threading, time
from pathlib import Path

from cosformer import cli
from cosformer.experiment import DataConfig, Experiment, ModelConfig, TrainConfig
from cosformer.recipes import RECIPES
from studies.cosformer2022 import __main__ as study
from studies.cosformer2022 import loop

def tiny():
    return Experiment(
        recipe="lm-wikitext2-small",
        task="lm",
        data=DataConfig("python", {"max_bytes": 100_000}, length=32, eval_rows=4),
        model=ModelConfig("roberta_base", num_hidden_layers=1, hidden_size=16, num_attention_heads=2,
                          intermediate_size=32, hidden_dropout_prob=0.0),
        train=TrainConfig(steps=12, batch=2, lr=1e-3, eval_every=6, save_every=4, log_every=1, tracker="none",
                          threads=1),
    )

RECIPES["lm-wikitext2-small"] = tiny
loop.launcher = lambda processes: [__file__]

def watch(metrics, step):
    while not (metrics.exists() and f'"step": {step},' in metrics.read_text()):
        time.sleep(0.001)
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    trains = sys.argv[1] in ("train", "resume")
    if trains and "KILL_AT" in os.environ:
        metrics = Path(sys.argv[sys.argv.index("--run") + 1]) / "metrics.jsonl"
        threading.Thread(target=watch, args=(metrics, int(os.environ["KILL_AT"])), daemon=True).start()
    sys.exit((cli.main if trains else study.main)(sys.argv[1:]))
"""


@pytest.mark.usefixtures("one_thread")  # sums depend on the threads in their last bits
def test_a_killed_loop_continues_and_uses_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "cosformer_tiny.py"
    script.write_text(COSFORMER)
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)  # where `studies` is
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(RECIPES, "lm-wikitext2-small", RECIPES["lm-wikitext2-small"])
    monkeypatch.setattr("studies.cosformer2022.loop.launcher", None)
    import cosformer_tiny  # pyright: ignore[reportMissingImports]  # replaces them; monkeypatch puts them back

    runs = tmp_path / "runs"
    run = runs / "lm-wikitext2-small-cosformer-seed0"
    words = ["table2", "--attentions", "cosformer", "--seeds", "1", "--runs", str(runs)]
    killed = subprocess.run([sys.executable, script, *words], env=os.environ | {"KILL_AT": "6"}, check=False)
    assert killed.returncode == -9
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 6 <= steps[-1] < 12 and not (run / "result.json").exists()
    assert (run / "checkpoints" / "checkpoint-4").is_dir()

    capfd.readouterr()
    assert study.main(words) == 0
    out = capfd.readouterr().out
    assert "Resume lm-wikitext2-small-cosformer-seed0\n" in out and "Start" not in out
    found = json.loads((run / "result.json").read_text())
    assert found["steps"] == 12
    whole = train(cosformer_tiny.tiny(), tmp_path / "whole", quiet=True)
    assert found["scores"] == whole["scores"]

    time = (run / "result.json").stat().st_mtime_ns
    assert study.main(words) == 0
    out = capfd.readouterr().out
    assert "Resume" not in out and "Start" not in out and "(one seed)" in out
    assert "bits per byte" in out and "23.1" not in out  # of another kind
    assert (run / "result.json").stat().st_mtime_ns == time
