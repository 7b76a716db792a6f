"""Several processes with rows or shards of rows, and windows, equal one process with whole rows."""

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
from cosformer.train import evaluate_run, mesh, resume, train
from cosformer.train.arguments import arguments
from studies.cosformer2022.loop import launcher

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


def cut_back(run: Path, step: int) -> None:
    """As if the run had been stopped before the checkpoint of its last update, ``step``, was whole."""
    (run / "result.json").unlink()
    (run / "checkpoints" / f"checkpoint-{step}" / "complete.json").unlink()


# accelerate shards on GPUs only
STRATEGIES = ["ddp", pytest.param("fsdp", marks=[pytest.mark.gpu, pytest.mark.slow])]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("task", ["lm", "mlm"])  # the number of masked tokens differs between the processes
def test_two_processes_give_the_losses_of_one(small, tmp_path, metric_lines, strategy, task) -> None:
    experiment = small(task=task, steps=6, log_every=1, eval_every=3, save_every=3, model={"hidden_dropout_prob": 0.0})
    train(experiment, tmp_path / "one", quiet=True)
    torchrun(tmp_path, 2, [job(with_train(experiment, strategy=strategy), tmp_path / "two", 1)])
    assert_same(metric_lines(tmp_path / "one"), metric_lines(tmp_path / "two"))
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two"))
    assert two["processes"] == 2
    assert two["scores"]["test"]["loss"] == pytest.approx(one["scores"]["test"]["loss"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_resume(small, tmp_path, metric_lines, strategy) -> None:
    experiment = small(
        steps=6, log_every=1, eval_every=3, save_every=3, strategy=strategy, model={"hidden_dropout_prob": 0.0}
    )
    torchrun(tmp_path, 2, [job(experiment, tmp_path / "run", 1)])
    before = metric_lines(tmp_path / "run")
    cut_back(tmp_path / "run", 6)
    torchrun(tmp_path, 2, [{"run": tmp_path / "run", "resume": True}])
    assert metric_lines(tmp_path / "run") == before


def test_a_batch_that_cannot_be_shared_is_refused(small, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="batch=4 cannot be shared by 3 processes"):
        arguments(small(), tmp_path)


@pytest.fixture
def ten(small) -> Experiment:
    """Ten updates of rows that do not divide evenly, with a score and a checkpoint half-way."""
    return small(
        steps=10,
        log_every=1,
        eval_every=5,
        save_every=5,
        model={"hidden_dropout_prob": 0.0},
        data={"length": 62, "eval_rows": 6},
    )


def test_rows_over_four_processes(ten, tmp_path, metric_lines) -> None:
    """K = 4, and 2 x 2 with data parallelism; then K changes between checkpoints in both directions."""
    for name in ("one", "half"):
        train(ten, tmp_path / name, quiet=True)
    cut_back(tmp_path / "half", 10)
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
    cut_back(back, 10)
    with pytest.raises(ValueError, match="sequence_parallel=4 does not divide 1 processes"):
        resume(back, quiet=True)
    resume(back, sequence_parallel=1, quiet=True)
    assert_same(one, metric_lines(back))


def test_rows_over_two_processes_and_a_rank_that_dies(small, tmp_path, metric_lines) -> None:
    """With dropout: killed and resumed is, to the bit, the run that was never stopped. A masked language model too."""
    options = {"steps": 10, "log_every": 1, "eval_every": 5, "save_every": 5, "data": {"length": 62, "eval_rows": 6}}
    both = {"short_convolution": 4, "output_gate": True}
    dropped, masked = (
        small(**options, model=both),
        small(**options, task="mlm", model=both | {"hidden_dropout_prob": 0.0}),
    )
    jobs = [job(dropped, tmp_path / "whole", 2), job(masked, tmp_path / "mlm", 2)]
    jobs.append(job(dropped, tmp_path / "killed", 2, dies=7))
    torchrun(tmp_path, 2, jobs, fails=True)  # the last job's second process is gone, and the first stops too
    assert (tmp_path / "whole" / "result.json").exists() and not (tmp_path / "killed" / "result.json").exists()
    torchrun(tmp_path, 2, [{"run": tmp_path / "killed", "resume": True}])
    assert metric_lines(tmp_path / "killed") == metric_lines(tmp_path / "whole")
    files = [tmp_path / name / "checkpoints" / "checkpoint-10" / "model.safetensors" for name in ("whole", "killed")]
    assert files[0].read_bytes() == files[1].read_bytes()
    train(masked, tmp_path / "mlm-one", quiet=True)
    assert_same(metric_lines(tmp_path / "mlm-one"), metric_lines(tmp_path / "mlm"))


@pytest.mark.parametrize("window", [16, 62])
@pytest.mark.parametrize("model", [{}, {"short_convolution": 4, "output_gate": True}], ids=["plain", "convolution"])
def test_rows_in_windows(ten, tmp_path, metric_lines, window, model) -> None:
    ten = dataclasses.replace(ten, model=dataclasses.replace(ten.model, **model))
    train(ten, tmp_path / "one", quiet=True)
    train(with_train(ten, window=window), tmp_path / "windows", quiet=True)
    assert_same(metric_lines(tmp_path / "one"), metric_lines(tmp_path / "windows"))
    scores = [evaluate_run(tmp_path / name, ["valid"])["valid"]["loss"] for name in ("one", "windows")]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


def test_truncated_windows_train_too(ten, tmp_path, metric_lines) -> None:
    train(with_train(ten, window=16, window_gradients="truncated"), tmp_path / "run", quiet=True)
    losses = [m["loss"] for m in metric_lines(tmp_path / "run") if m["kind"] == "train"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_parallel": 2}, "sequence_parallel=2 does not divide 1 processes"),
        ({"window": 16, "gradient_checkpointing": True}, "window=16 does not go with gradient_checkpointing"),
        ({"window": 16, "diagnostics": True}, "window=16 does not go with diagnostics"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(ten, tmp_path, changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        train(with_train(ten, **changes), tmp_path / "run", quiet=True)


def test_a_task_that_pools_is_refused(ten) -> None:
    with pytest.raises(ValueError, match="sequence_parallel does not go with task 'classify'"):
        mesh.check(dataclasses.replace(ten.train, sequence_parallel=2), "classify", 2)


def documented_lines(page: str) -> list[list[str]]:
    """The lines of a page of docs/how-to that train or resume, in their order."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / page).read_text(encoding="utf-8")
    starts = ("torchrun", "cosformer train", "cosformer resume")
    return [shlex.split(line) for line in text.splitlines() if line.startswith(starts)]


def line_without_gpus() -> list[str]:
    """The one of docs/how-to/cluster.md that starts two processes of a small recipe."""
    (line,) = [
        words
        for words in documented_lines("cluster.md")
        if words[:2] == ["torchrun", "--nproc-per-node=2"] and any("small" in word for word in words)
    ]
    return line


def run_documented(words: list[str], folder: Path) -> None:
    """For four updates, or as many as the run that is resumed has."""
    tiny = (
        "--train.steps 4 --train.eval-every 2 --train.save-every 2 --data.options.max_bytes 300000 --data.eval-rows 4"
    )
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]]
    start = start if words[0] == "torchrun" else [sys.executable, "-m", *words]
    home = os.environ | {"COSFORMER_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    words = [*start, "--quiet", *([] if "resume" in words else tiny.split())]
    done = subprocess.run(words, cwd=folder, env=home, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_documented_line_starts_two_processes(tmp_path) -> None:
    run_documented(line_without_gpus(), tmp_path)
    assert json.loads((tmp_path / "runs" / "two" / "result.json").read_text())["processes"] == 2


def test_the_lines_of_a_dry_run_are_of_the_same_form() -> None:
    assert launcher(2)[-3:] == ["-m", "--", "cosformer"] == line_without_gpus()[2:5]


@pytest.mark.slow
def test_the_documented_lines_run(tmp_path) -> None:
    lines = documented_lines("long_sequences.md")
    assert len(lines) == 7
    for words in lines:
        if "resume" in words:
            cut_back(tmp_path / "runs" / "shards", 4)
        run_documented(words, tmp_path)
