"""Two processes train as one does."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cosformer.train import resume, train

WORKER = """
import sys
from pathlib import Path
from cosformer.experiment import from_json
from cosformer.train import resume, train
run = Path(sys.argv[2])
resume(run, quiet=True) if sys.argv[3] == "resume" else train(from_json(Path(sys.argv[1]).read_text()), run, quiet=True)
"""


def torchrun(experiment, folder: Path, name: str, what: str = "train") -> None:
    script, described = folder / "worker.py", folder / f"{name}.json"
    script.write_text(WORKER)
    described.write_text(experiment.to_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, script, described, folder / name, what], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


# accelerate shards on GPUs only
STRATEGIES = ["ddp", pytest.param("fsdp", marks=[pytest.mark.gpu, pytest.mark.slow])]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_two_processes_give_the_losses_of_one(small, tmp_path, metric_lines, strategy, task) -> None:
    import dataclasses

    experiment = small(steps=6, log_every=1, eval_every=3, save_every=3, model={"dropout": 0.0})
    if task == "mlm":  # the number of masked tokens differs between the processes
        model = dataclasses.replace(experiment.model, preset="roberta_base", fields={})
        experiment = dataclasses.replace(experiment, task="mlm", model=model)
    train(experiment, tmp_path / "one", quiet=True)
    both = dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, strategy=strategy))
    torchrun(both, tmp_path, "two")
    one, two = metric_lines(tmp_path / "one"), metric_lines(tmp_path / "two")
    assert [m["step"] for m in one] == [m["step"] for m in two]
    for a, b in zip(one, two, strict=True):
        if a["kind"] == "train":
            assert b["loss"] == pytest.approx(a["loss"], abs=1e-5) and b["tokens"] == a["tokens"]
        else:
            assert b["scores"]["loss"] == pytest.approx(a["scores"]["loss"], abs=1e-5)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")]
    assert results[1]["processes"] == 2
    assert results[1]["scores"]["test"]["loss"] == pytest.approx(results[0]["scores"]["test"]["loss"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_resume(small, tmp_path, metric_lines, strategy) -> None:
    experiment = small(steps=6, log_every=1, eval_every=3, save_every=3, strategy=strategy, model={"dropout": 0.0})
    torchrun(experiment, tmp_path, "run")
    before = metric_lines(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "checkpoints" / "checkpoint-6" / "complete.json").unlink()
    torchrun(experiment, tmp_path, "run", "resume")
    assert metric_lines(tmp_path / "run") == before


def test_a_batch_that_cannot_be_shared_is_refused(small, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    from cosformer.train.engine import arguments

    with pytest.raises(ValueError, match="batch=4 cannot be shared by 3 processes"):
        arguments(small(), tmp_path)
    with pytest.raises(FileNotFoundError):
        resume(tmp_path / "none")


def documented_line() -> list[str]:
    """The line for two processes without GPUs, as docs/how-to/cluster.md has it."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith("torchrun --nproc-per-node=2") and "small" in line]
    return shlex.split(line)


def test_the_documented_line_starts_two_processes(tmp_path) -> None:
    tiny = "--quiet --train.steps 2 --train.eval-every 2 --train.save-every 2 --data.options.max_bytes 300000 --data.eval-rows 4"
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", *documented_line()[1:], *tiny.split()]
    home = os.environ | {"COSFORMER_HOME": str(tmp_path / "home")}
    done = subprocess.run(words, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "runs" / "two" / "result.json").read_text())["processes"] == 2


def test_the_lines_of_a_dry_run_are_of_the_same_form() -> None:
    from cosformer.lab.paper.queue import launcher

    assert launcher(2)[-3:] == ["-m", "--", "cosformer"] == documented_line()[2:5]
