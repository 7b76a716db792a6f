"""``cosformer bench train``: its ratios, its variants, its tables; at sizes that take seconds."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from cosformer import cli
from cosformer import train as training
from cosformer.bench import measure, steps, train
from cosformer.bench.runner import tables
from cosformer.report.measurements import Measurement, Results, read_results


def timed(monkeypatch, seconds: dict[str, float]) -> list[str]:
    """Every sample of an action takes what ``seconds`` says; returns the list of actions that were timed."""
    seen: list[str] = []

    def interleaved(actions: dict[str, Any], **options: Any) -> dict[str, list[float]]:
        seen.extend(actions)
        return {name: [seconds[name]] * 3 for name in actions}

    monkeypatch.setattr(steps, "interleaved", interleaved)
    return seen


def at(n: int, *names: str, width: int = 16, tokens: int = 32, memory: int = 10**9) -> dict[str, Measurement]:
    chosen = [(name, "") for name in names]
    found = train.at_length(n, chosen, width=width, tokens=tokens, repeats=1, memory=memory)
    return {m.attention: m for m in found}


def test_a_whole_run(tmp_path: Path, capsys) -> None:
    target = tmp_path / "train.json"
    words = ["--attentions", "cosformer,linformer", "--lengths", "16,32", "--width", "16", "--tokens", "64"]
    words += ["--engine-steps", "0", "--threads", "1", "--repeats", "3"]
    assert cli.main(["bench", "train", *words, "--json", str(target)]) == 0
    out = capsys.readouterr().out
    found = read_results(target)
    assert found.command == f"cosformer bench train {' '.join(words)}"
    assert [(m.length, m.attention, m.backend) for m in found.measurements] == [
        (n, *variant) for n in (16, 32) for variant in (("cosformer", ""), ("linformer", ""), ("cosformer", "plain"))
    ]
    for m in found.measurements:
        if m.attention == "cosformer":
            assert m.value is not None and m.value > 0 and m.milliseconds and m.baseline_milliseconds
        else:
            assert m.value is None and "no causal form" in m.note
    assert "not run" in out and "tokens/s at 32" in out


def test_ratios_are_speeds_over_softmax(monkeypatch) -> None:
    seen = timed(monkeypatch, {"softmax:": 0.9, "cosformer:": 0.3, "relu:": 1.8})
    found = at(16, "cosformer", "relu")
    assert len(seen) == 3
    assert found["cosformer"].value == pytest.approx(3.0) and found["relu"].value == pytest.approx(0.5)
    assert (found["cosformer"].milliseconds, found["cosformer"].baseline_milliseconds) == (300.0, 900.0)


def test_tables_show_tokens_per_second(monkeypatch, results: Callable[..., Results]) -> None:
    timed(monkeypatch, {"softmax:": 0.5, "cosformer:": 0.25})
    (found,) = tables(results("train", *at(16, "cosformer").values(), tokens=32))
    assert list(found.header) == ["attention", "16", "tokens/s at 16"]
    assert found.rows == [["softmax", "1", "64"], ["cosformer", "2.00", "128"]]


def test_a_batch_holds_the_tokens_asked_for() -> None:
    _, batch = train.model_and_batch("cosformer", "", 16, 16, 70)
    assert batch["input_ids"].shape == (4, 16) and batch["input_ids"].max() < 256


def test_backends_give_the_same_loss() -> None:
    losses = []
    for backend in ("", "plain"):
        model, batch = train.model_and_batch("cosformer", backend, 300, 16, 300)
        assert {layer.attention.attention.backend for layer in model.model.layers} == {backend or "auto"}
        losses.append(model(**batch).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_training_step_learns_and_an_inference_step_does_not() -> None:
    model, batch = train.model_and_batch("cosformer", "", 16, 16, 32)
    before = [p.detach().clone() for p in model.parameters()]
    steps.inference_step(model, batch)()
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    steps.training_step(model, batch)()
    assert model.training
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True) if b.grad.abs().max() > 0)


def test_what_does_not_fit_is_named(monkeypatch) -> None:
    timed(monkeypatch, {"softmax:": 1.0, "cosformer:": 1.0})
    found = at(2048, "cosformer", "synthesizer", tokens=2048, memory=150_000_000)
    assert found["cosformer"].value == 1.0
    assert found["synthesizer"].value is None and found["synthesizer"].note == "out of memory: more than 0.15 GB"
    held = torch.zeros(300_000_000 // 4)  # the limit is gone again
    assert held.nbytes == 300_000_000


def test_the_engine_is_timed_behind_its_first_interval(monkeypatch) -> None:
    def fake(experiment: Any, run: Path, *, quiet: bool) -> None:
        run.mkdir()
        lines = [("train", 5, 9.0), ("train", 10, 10.0), ("train", 15, 13.0), ("eval", 15, 20.0)]
        text = "".join(json.dumps({"kind": k, "step": s, "seconds": t}) + "\n" for k, s, t in lines)
        (run / "metrics.jsonl").write_text(text)

    monkeypatch.setattr(train, "train", fake)
    assert train._engine(train._experiment(15, 1)) == pytest.approx(0.4)


def test_the_engine_against_a_bare_loop(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path))
    for name, value in (("ENGINE_ROWS", 1), ("ENGINE_LENGTH", 16), ("LOG_EVERY", 1), ("ENGINE_ROUNDS", 2)):
        monkeypatch.setattr(train, name, value)
    m = train.engine_update(4, threads=1)
    assert m.kind == "engine update" and m.better == "lower" and m.milliseconds and m.baseline_milliseconds
    assert m.value is not None and m.value > 0.2
    with pytest.raises(ValueError, match="too few"):
        train.engine_update(1, threads=1)
    assert training.train is train.train


def test_a_timed_update_follows_an_untimed_one_of_the_same_model(monkeypatch) -> None:
    """What training repeats is one model's update; the memory that another one left behind is not its matter."""
    order: list[str] = []
    monkeypatch.setattr(measure, "seconds", lambda action, calls: action() or order.append("timed") or 1.0)
    monkeypatch.setattr(steps, "attempt", lambda build, memory, device: (partial(order.append, build()), ""))
    monkeypatch.setattr(train, "training_step", lambda name, batch: name)
    monkeypatch.setattr(train, "model_and_batch", lambda name, *_: (name, {}))
    at(16, "cosformer")
    assert order == ["softmax", "softmax", "timed", "cosformer", "cosformer", "timed"]
