"""Runs: options change only what they say, invalid numbers stop a run, diagnostics are true."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from transformers import Trainer

from cosformer.attention import build_attention
from cosformer.extras import MissingExtra
from cosformer.nn.feed_forward import FeedForward
from cosformer.tasks import build_task
from cosformer.train import TrainingFailed, evaluate_run, load_model, start_model, train
from cosformer.train import run as runs
from cosformer.train.diagnostics import denominators
from cosformer.train.engine import Engine, arguments
from cosformer.train.mesh import Stream


def losses(lines) -> list[float]:
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_a_run_leaves_what_it_promises(small, tmp_path, metric_lines) -> None:
    experiment = small(tracker="tensorboard", steps=10, eval_every=4)
    result = train(experiment, tmp_path / "run", quiet=True)
    run = tmp_path / "run"
    lines = metric_lines(run)
    assert [m["step"] for m in lines if m["kind"] == "train"] == [2, 4, 6, 8, 10]
    # every fourth update, and the last
    evaluations = [m for m in lines if m["kind"] == "eval"]
    assert [m["step"] for m in evaluations] == [4, 8, 10]
    assert result["tokens"] == 10 * 4 * 64 == lines[-2]["tokens"]
    status = json.loads((run / "run.json").read_text())
    best = min(evaluations, key=lambda m: m["scores"]["loss"])
    assert status["status"] == "done" and status["best"] == {"step": best["step"], "score": best["scores"]["loss"]}
    assert result["scores"]["valid"] == evaluations[-1]["scores"]  # the last weights are what is scored
    assert result["weights"] == "last" and set(result["learned"]) == set(result["scores"])
    assert list((run / "tensorboard").glob("events*"))
    assert evaluate_run(run, ["valid"])["valid"] == result["scores"]["valid"]
    assert json.loads((run / "result.json").read_text()) == json.loads(json.dumps(result))


def test_the_logged_loss_is_the_models_own(small, tmp_path, metric_lines) -> None:
    """The first update's loss, computed by hand on the rows that the stream gives first."""
    experiment = small(steps=1, log_every=1, model={"hidden_dropout_prob": 0.0})
    train(experiment, tmp_path / "run", quiet=True)
    task = build_task(experiment)
    model = start_model(task, experiment).train()
    stream = Stream(task, 4, experiment.train.seed)
    batch = task.collate([stream[i] for i in range(4)])
    expected = model(**batch).loss.item()
    assert losses(metric_lines(tmp_path / "run")) == pytest.approx([expected], rel=1e-6)


def test_rows_of_one_length_stand_together_and_each_comes_once_a_pass() -> None:
    rows = 1_003  # the last group is a short one
    lengths = np.random.default_rng(0).integers(3, 60, rows)

    class Rows:
        train_rows = rows
        train_lengths = staticmethod(lambda: lengths)
        train_row = staticmethod(lambda index, number: index)

    def padding(order: list[int]) -> int:
        updates = lengths[order][: len(order) // 8 * 8].reshape(-1, 8)
        return int((updates.max(1, keepdims=True) - updates).sum())

    plain, alike = (
        [stream[i] for i in range(2 * rows)] for stream in (Stream(Rows(), 2 * rows, 1, n) for n in (None, 8))
    )
    first, second = alike[:rows], alike[rows:]
    assert sorted(first) == sorted(second) == list(range(rows)) and first != second
    assert padding(first) < padding(plain[:rows]) / 5 and padding(alike) < padding(plain) / 1.3
    assert (np.diff(lengths[first][:1000].reshape(-1, 8).max(1)) < 0).mean() > 0.3, "short groups do not all come first"
    again = Stream(Rows(), 2 * rows, 1, 8)
    assert [again[i] for i in range(1_990, 2_006)] == alike[1_990:], "the same wherever a resumed run begins"


def test_an_update_takes_a_group(small, tmp_path, monkeypatch) -> None:
    """The group is as large as an update, and the lengths are those of the rows that the task gives."""
    experiment = small(task="mlm", steps=3, batch=4, group_by_length=True, data={"length": 32})
    task = build_task(experiment)
    lengths = task.train_lengths()
    assert [len(task.train_row(i, 0)["inputs"]) - 1 for i in range(50)] == lengths[:50].tolist()
    batches = []
    collate = type(task).collate
    monkeypatch.setattr(type(task), "collate", lambda self, rows: batches.append(rows) or collate(self, rows))
    train(experiment, tmp_path / "run", quiet=True)
    stream = Stream(task, 12, experiment.train.seed, 4)
    wanted = [stream[i]["inputs"].tolist() for i in range(4)]
    assert [row["inputs"].tolist() for row in batches[0]] == wanted


def test_rows_of_one_length_are_not_grouped(small, tmp_path) -> None:
    with pytest.raises(ValueError, match="group_by_length: the rows of task 'lm' are of one length; leave it out"):
        train(small(group_by_length=True), tmp_path / "run", quiet=True)


@pytest.fixture
def losses_with(small, tmp_path, metric_lines):
    """The losses of four updates with some options changed."""

    def trained(**options) -> list[float]:
        run = tmp_path / "-".join(["run", *options])
        train(small(steps=4, log_every=1, model={"hidden_dropout_prob": 0.0}, **options), run, quiet=True)
        return losses(metric_lines(run))

    return trained


@pytest.mark.parametrize(
    "option",
    [{"micro_batch": 1}, {"gradient_checkpointing": True}, pytest.param({"compile": True}, marks=pytest.mark.slow)],
)
def test_options_that_must_not_change_the_losses(losses_with, option) -> None:
    plain, changed = losses_with(), losses_with(**option)
    assert len(plain) == 4 and changed == pytest.approx(plain, abs=1e-5)


def test_bfloat16_is_near_and_not_the_same(losses_with) -> None:
    plain, half = losses_with(), losses_with(precision="bf16")
    assert half == pytest.approx(plain, rel=0.02) and half != plain


@pytest.mark.parametrize("optimizer", ["adam", "nag"])
def test_the_loss_falls(small, tmp_path, metric_lines, optimizer) -> None:
    lr = {"adam": 5e-3, "nag": 0.05}[optimizer]
    train(
        small(steps=40, optimizer=optimizer, momentum=0.9, lr=lr, clip=1.0, log_every=5), tmp_path / "run", quiet=True
    )
    found = losses(metric_lines(tmp_path / "run"))
    assert found[-1] < found[0] - 1.0


def test_a_loss_that_is_not_a_number_stops_names_the_layer_and_keeps_the_checkpoint(
    small, tmp_path, monkeypatch
) -> None:
    forward, calls = FeedForward.forward, []

    def poisoned(self, x):
        calls.append(self)
        out = forward(self, x)
        # two layers an update: the second layer, from the seventh update on
        return out * float("nan") if self.training and len(calls) > 12 and self is calls[1] else out

    monkeypatch.setattr(FeedForward, "forward", poisoned)
    with pytest.raises(
        TrainingFailed, match=r"update 7, first in the output of model\.layers\.1\.feed_forward"
    ) as error:
        train(small(save_every=5, eval_every=100), tmp_path / "run", quiet=True)
    assert "the last good checkpoint is checkpoint-5" in str(error.value)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
    names = [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()]
    assert names == ["checkpoint-5"]


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_a_number_never_reaches_the_weights(small, tmp_path, monkeypatch, bad, clip) -> None:
    step, poisoned_name = Engine.training_step, "model.layers.1.feed_forward.widen.weight"

    def poisoned(self, model, inputs, number=None):
        loss = step(self, model, inputs, number)
        if self.state.global_step == 5:
            dict(model.named_parameters())[poisoned_name].grad[0] = bad
        return loss

    monkeypatch.setattr(Engine, "training_step", poisoned)
    said = f"the gradient is not a number at update 6, first in the gradient of {poisoned_name}; "
    with pytest.raises(TrainingFailed, match=re.escape(said)):
        train(small(clip=clip, save_every=5, eval_every=100), tmp_path / "run", quiet=True)


@pytest.mark.parametrize("name", ["cosformer", "relu", "linear"])
@pytest.mark.parametrize("causal", [True, False])
def test_denominators_are_the_row_sums(name, causal) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 9, 4).double(), torch.randn(2, 2, 9, 4).double()
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 3] = False
    found = denominators(build_attention(name, num_heads=2, head_dim=4, max_len=12, causal=causal), q, k, mask)
    fq, fk = (torch.nn.functional.elu(x) + 1 if name == "linear" else x.relu() for x in (q, k))
    scores = fq @ fk.mT
    if name == "cosformer":
        place = torch.arange(9).double()
        scores = scores * torch.cos(torch.pi / 2 * (place[:, None] - place[None]) / 12)
    scores = scores.masked_fill(~mask[:, None, None], 0)
    scores = scores.tril() if causal else scores
    torch.testing.assert_close(found, scores.sum(-1), rtol=1e-10, atol=1e-10)


def test_attentions_without_denominators_say_none() -> None:
    q = torch.randn(1, 2, 9, 4)
    assert (
        denominators(build_attention("softmax", num_heads=2, head_dim=4, max_len=12, causal=True), q, q, None) is None
    )


def test_diagnostics_are_logged_per_layer(small, tmp_path, metric_lines) -> None:
    fields = {"steps": 4, "log_every": 2, "model": {"hidden_dropout_prob": 0.0}}
    train(small(**fields, diagnostics=True), tmp_path / "watched", quiet=True)
    train(small(**fields), tmp_path / "plain", quiet=True)
    watched = metric_lines(tmp_path / "watched")
    found = [m for m in watched if m["kind"] == "diagnostics"]
    assert [m["step"] for m in found] == [2, 4]
    for line in found:
        assert [layer["layer"] for layer in line["layers"]] == [0, 1]
        for layer in line["layers"]:
            assert layer["smallest_denominator"] >= 0 and 0 <= layer["zero_share"] <= 1 and layer["grad_norm"] > 0
    # watching changes nothing
    assert [m for m in watched if m["kind"] != "diagnostics"] == metric_lines(tmp_path / "plain")


def test_diagnostics_tell_of_gradients_before_they_are_clipped(small, tmp_path, metric_lines) -> None:
    train(small(steps=1, log_every=1, clip=1e-3, diagnostics=True), tmp_path / "run", quiet=True)
    logged, watched = (
        next(m for m in metric_lines(tmp_path / "run") if m["kind"] == k) for k in ("train", "diagnostics")
    )
    layers = [layer["grad_norm"] for layer in watched["layers"]]
    assert logged["grad_norm"] > 0.1 and 0.01 * logged["grad_norm"] < max(layers) < logged["grad_norm"]


def test_clipping_is_torchs_own(small, tmp_path, monkeypatch) -> None:
    """The same bits as the Trainer's own order of things: norm and clipping in one call."""
    train(small(steps=6, clip=0.1), tmp_path / "ours", quiet=True)
    monkeypatch.setattr(Engine, "_clip_grad_norm", Trainer._clip_grad_norm)
    monkeypatch.setattr(Engine, "_get_grad_norm", Trainer._get_grad_norm)
    train(small(steps=6, clip=0.1), tmp_path / "theirs", quiet=True)
    ours, theirs = (load_model(tmp_path / name, "last").state_dict() for name in ("ours", "theirs"))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_sharded_weights_are_scored_as_they_are_and_the_result_says_so(small, tmp_path, monkeypatch) -> None:
    """One process that takes itself for sharded where it keeps the best weights and where it ends."""
    finish, keep = runs._finish, Engine._keep_best

    def sharded_finish(engine, task, record):
        engine.is_fsdp_enabled = True
        return finish(engine, task, record)

    def sharded_keep(self, score):
        (self.run / "best.new").mkdir()  # as a killed process leaves it
        (self.run / "best.new" / "stale").touch()
        self.is_fsdp_enabled = True
        keep(self, score)
        self.is_fsdp_enabled = False

    monkeypatch.setattr(runs, "_finish", sharded_finish)
    monkeypatch.setattr(Engine, "_keep_best", sharded_keep)
    monkeypatch.setattr(Engine, "save_model", lambda self, place, **_: self.model.save_pretrained(place))
    result = train(small(steps=6, eval_every=3), tmp_path / "run", quiet=True)
    assert result["weights"] == "last"
    assert result["scores"] == evaluate_run(tmp_path / "run", list(result["scores"]), "last")
    assert (tmp_path / "run" / "best" / "config.json").is_file() and not (tmp_path / "run" / "best" / "stale").exists()


def test_impossible_options_are_refused(small, tmp_path, monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"strategy='fsdp'.*torchrun"):
        train(small(strategy="fsdp"), tmp_path / "a", quiet=True)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="precision='fp16' needs a GPU"):
            train(small(precision="fp16"), tmp_path / "b", quiet=True)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ValueError, match="strategy='fsdp' shards on GPUs only"):
            arguments(small(strategy="fsdp"), tmp_path)
        monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(MissingExtra, match=r"(?s)trackio.*cosformer\[trackers\]"):
        monkeypatch.setitem(sys.modules, "trackio", None)
        train(small(tracker="trackio"), tmp_path / "t", quiet=True)
    with pytest.raises(ValueError, match="max_len=32"):
        train(small(model={"max_len": 32}), tmp_path / "c", quiet=True)
    train(small(steps=2), tmp_path / "d", quiet=True)
    (tmp_path / "d" / "best" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"best/config\.json is missing"):
        load_model(tmp_path / "d")
    shutil.rmtree(tmp_path / "d" / "best")
    with pytest.raises(FileNotFoundError, match="no best weights"):
        load_model(tmp_path / "d")
