"""Rows over processes, and rows in pieces on one device: the run of one process with whole rows."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cosformer.experiment import Experiment
from cosformer.train import evaluate_run, resume, train

WORKER = """
import json, os, sys
from pathlib import Path
from cosformer.experiment import from_json
from cosformer.train import engine, resume, train
for job in json.loads(Path(sys.argv[1]).read_text()):
    if job.get("dies"):
        before = engine.Engine._log_update
        def log(self, step, lr, dies=job["dies"]):
            before(self, step, lr)
            if step == dies and os.environ["RANK"] == "1":
                os._exit(9)
        engine.Engine._log_update = log
    run = Path(job["run"])
    if job.get("resume"):
        resume(run, sequence_parallel=job.get("shards"), quiet=True)
    else:
        train(from_json(json.dumps(job["experiment"])), run, quiet=True)
"""


def torchrun(folder: Path, processes: int, jobs: list[dict[str, Any]], fails: bool = False) -> None:
    """The jobs one after the other, in processes that are started once."""
    (folder / "worker.py").write_text(WORKER)
    (folder / "jobs.json").write_text(json.dumps(jobs, default=str))
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone"]
    done = subprocess.run(
        [*command, folder / "worker.py", folder / "jobs.json"],
        capture_output=True,
        text=True,
        timeout=400,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert (done.returncode != 0) == fails, done.stderr[-3000:]


def with_train(experiment: Experiment, **changes: Any) -> Experiment:
    return dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, **changes))


def job(experiment: Experiment, run: Path, shards: int, **more: Any) -> dict[str, Any]:
    changed = with_train(experiment, sequence_parallel=shards)
    return {"experiment": dataclasses.asdict(changed), "run": run, **more}


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert [m["step"] for m in one] == [m["step"] for m in other]
    for a, b in zip(one, other, strict=True):
        if a["kind"] == "train":
            assert b["loss"] == pytest.approx(a["loss"], abs=1e-5) and b["tokens"] == a["tokens"]
            assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-3)
        else:
            assert b["scores"]["loss"] == pytest.approx(a["scores"]["loss"], abs=1e-5)
            assert b["scores"]["error"] == pytest.approx(a["scores"]["error"], abs=1e-5)


@pytest.fixture
def ten(small) -> Experiment:
    """Ten updates of rows that do not divide evenly, with a score and a checkpoint half-way."""
    return small(
        steps=10, log_every=1, eval_every=5, save_every=5, model={"dropout": 0.0}, data={"length": 62, "eval_rows": 6}
    )


def test_rows_over_four_processes(ten, tmp_path, metric_lines) -> None:
    """K = 4, and two by two with data parallelism; then the checkpoint of one process goes on with K = 2 and the other way round."""
    train(ten, tmp_path / "one", quiet=True)
    half(tmp_path, ten, "half")
    jobs = [job(ten, tmp_path / "four", 4), job(ten, tmp_path / "two-by-two", 2)]
    jobs.append({"run": tmp_path / "half", "resume": True, "shards": 2})
    torchrun(tmp_path, 4, jobs)
    one = metric_lines(tmp_path / "one")
    for name in ("four", "two-by-two", "half"):
        assert_same(one, metric_lines(tmp_path / name))
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["processes"] == 4
    # back to one process: the second half of a run that began with K = 4
    back = tmp_path / "four"
    (back / "result.json").unlink()
    (back / "checkpoints" / "checkpoint-10" / "complete.json").unlink()
    with pytest.raises(ValueError, match="sequence_parallel=4 does not divide 1 processes"):
        resume(back, quiet=True)
    resume(back, sequence_parallel=1, quiet=True)
    assert_same(one, metric_lines(back))


def half(folder: Path, experiment: Experiment, name: str) -> None:
    """A run of one process whose checkpoints after update 5 are gone."""
    train(experiment, folder / name, quiet=True)
    (folder / name / "result.json").unlink()
    (folder / name / "checkpoints" / "checkpoint-10" / "complete.json").unlink()


def test_rows_over_two_processes_and_a_rank_that_dies(small, tmp_path, metric_lines) -> None:
    """With dropout: killed and resumed is, to the bit, the run that was never stopped. A masked language model too."""
    options = {"steps": 10, "log_every": 1, "eval_every": 5, "save_every": 5, "data": {"length": 62, "eval_rows": 6}}
    dropped = small(**options)
    jobs = [job(dropped, tmp_path / "whole", 2), job(masked(dropped), tmp_path / "mlm", 2)]
    jobs.append(job(dropped, tmp_path / "killed", 2, dies=7))
    torchrun(tmp_path, 2, jobs, fails=True)  # the last job's second process is gone, and the first stops too
    assert (tmp_path / "whole" / "result.json").exists() and not (tmp_path / "killed" / "result.json").exists()
    torchrun(tmp_path, 2, [{"run": tmp_path / "killed", "resume": True}])
    assert metric_lines(tmp_path / "killed") == metric_lines(tmp_path / "whole")
    files = [tmp_path / name / "checkpoints" / "checkpoint-10" / "model.safetensors" for name in ("whole", "killed")]
    assert files[0].read_bytes() == files[1].read_bytes()
    train(masked(dropped), tmp_path / "mlm-one", quiet=True)
    assert_same(metric_lines(tmp_path / "mlm-one"), metric_lines(tmp_path / "mlm"))


def masked(experiment: Experiment) -> Experiment:
    """The same rows for a masked language model, without dropout."""
    model = dataclasses.replace(experiment.model, preset="roberta_base", fields={}, dropout=0.0)
    return dataclasses.replace(experiment, task="mlm", model=model)


@pytest.mark.parametrize("piece", [16, 62])
def test_rows_in_pieces(ten, tmp_path, metric_lines, piece) -> None:
    train(ten, tmp_path / "one", quiet=True)
    train(with_train(ten, piece=piece), tmp_path / "pieces", quiet=True)
    assert_same(metric_lines(tmp_path / "one"), metric_lines(tmp_path / "pieces"))
    scores = [evaluate_run(tmp_path / name, ["valid"])["valid"]["loss"] for name in ("one", "pieces")]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


def test_truncated_pieces_train_too(ten, tmp_path, metric_lines) -> None:
    train(with_train(ten, piece=16, piece_gradients="truncated"), tmp_path / "run", quiet=True)
    losses = [m["loss"] for m in metric_lines(tmp_path / "run") if m["kind"] == "train"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_parallel": 2}, "sequence_parallel=2 does not divide 1 processes"),
        ({"piece": 16, "gradient_checkpointing": True}, "piece=16 does not go with gradient_checkpointing"),
        ({"piece": 16, "diagnostics": True}, "piece=16 does not go with diagnostics"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(ten, tmp_path, changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        train(with_train(ten, **changes), tmp_path / "run", quiet=True)


def test_a_task_that_pools_is_refused(ten, tmp_path) -> None:
    from cosformer.train import mesh

    with pytest.raises(ValueError, match="sequence_parallel does not go with task 'classify'"):
        mesh.check(dataclasses.replace(ten.train, sequence_parallel=2), "classify", 2)


def documented_lines() -> list[list[str]]:
    """The lines of docs/how-to/long_sequences.md that train or resume, in their order."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "long_sequences.md").read_text(encoding="utf-8")
    starts = ("torchrun", "cosformer train", "cosformer resume")
    return [shlex.split(line) for line in page.splitlines() if line.startswith(starts)]


@pytest.mark.slow
def test_the_documented_lines_run(tmp_path) -> None:
    tiny = "--quiet --train.steps 4 --train.eval-every 2 --train.save-every 2 --data.options.max_bytes 300000 --data.eval-rows 4"
    home = os.environ | {"COSFORMER_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    lines = documented_lines()
    assert len(lines) == 7
    for words in lines:
        again = "resume" in words
        if again:  # as if it had been stopped after its first checkpoint
            run = tmp_path / "runs" / "shards"
            (run / "result.json").unlink()
            (run / "checkpoints" / "checkpoint-4" / "complete.json").unlink()
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]]
        start = start if words[0] == "torchrun" else [sys.executable, "-m", *words]
        words = [*start, *(["--quiet"] if again else tiny.split())]
        done = subprocess.run(words, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
