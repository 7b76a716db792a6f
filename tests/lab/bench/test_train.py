"""``cosformer bench train``: its ratios, its variants, its tables; at sizes that take seconds."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from cosformer import cli
from cosformer import train as training
from cosformer.lab.bench import engine, measure, results, steps, table, train


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> list[str]:
    """Every sample of an action takes what ``seconds`` says; returns the list of actions that were timed."""
    seen: list[str] = []

    def interleaved(actions: dict[str, Any], **options: Any) -> dict[str, list[float]]:
        seen.extend(actions)
        return {name: [seconds[name]] * 3 for name in actions}

    monkeypatch.setattr(measure, "interleaved", interleaved)
    return seen


def rows(n: int, labels: list[str], *, width: int = 16, tokens: int = 32, memory: int = 10**9) -> dict[str, Any]:
    found = train.length_rows(n, labels, width=width, tokens=tokens, repeats=1, memory=memory)
    return {row.id.split("/")[-1]: row for row in found}


def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, readme = tmp_path / "train.json", tmp_path / "README.md"
    readme.write_text("before\n<!-- bench train:start -->\nold\n<!-- bench train:end -->\nafter\n")
    words = ["--lengths", "16,32", "--tokens", "64", "--width", "16", "--attentions", "cosformer,linformer"]
    words += ["--threads", "1", "--repeats", "3", "--engine-steps", "0"]
    assert cli.main(["bench", "train", *words, "--json", str(target)]) == 0
    out = capsys.readouterr().out
    found = results.read(target)
    assert found["command"].startswith(
        "cosformer bench train --lengths 16,32 --width 16 --attentions cosformer,linformer"
    )
    by_id = {row.id: row for row in results.rows_of(found)}
    assert set(by_id) == {
        f"train/16/{n}/{label}" for n in (16, 32) for label in ("cosformer", "linformer", "cosformer:chunked")
    }
    for n in (16, 32):
        for label in ("cosformer", "cosformer:chunked"):
            row = by_id[f"train/16/{n}/{label}"]
            assert row.value is not None and row.value > 0 and set(row.milliseconds) == {label, "softmax"}
            assert row.goal is None  # the goals are for the benchmark's own sizes
        assert by_id[f"train/16/{n}/linformer"].value is None
        assert "no causal form" in by_id[f"train/16/{n}/linformer"].note
    assert "not run" in out and "tokens/s at 32" in out
    assert cli.main(["bench", "train", "--read", str(target), "--into", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert table.as_markdown(found, train.tables(found)) in text and found["machine"]["cpu"] in text


def test_ratios_are_speeds_over_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = timed(monkeypatch, {"softmax": 0.9, "cosformer": 0.3, "relu": 1.8})
    found = rows(16, ["cosformer", "relu"])
    assert seen == ["softmax", "cosformer", "relu"]
    assert found["cosformer"].value == pytest.approx(3.0) and found["relu"].value == pytest.approx(0.5)
    assert found["cosformer"].milliseconds == {"cosformer": 300.0, "softmax": 900.0}


def test_goals_are_for_cosformer_at_the_stated_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, dict.fromkeys(("softmax", "cosformer", "relu"), 1.0))
    monkeypatch.setattr(steps, "attempt", lambda build, memory: (lambda: None, ""))
    for n, goal in {512: 0.9, 2048: 1.5, 8192: 4.0, 1024: None}.items():
        found = rows(n, ["cosformer", "relu"], width=256, tokens=16_384)
        assert found["cosformer"].goal == goal and found["relu"].goal is None
    assert rows(512, ["cosformer"], width=512, tokens=16_384)["cosformer"].goal is None
    assert rows(512, ["cosformer"], width=256, tokens=4096)["cosformer"].goal is None


def test_tables_show_tokens_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {"softmax": 0.5, "cosformer": 0.25})
    about = {"cpu": "x", "threads": 2, "torch": "2", "instructions": "y", "cores": 2, "system": "z", "python": "3"}
    origin = {"command": "cosformer bench train", "date": "2000-01-01", "commit": None}
    document = results.document(rows(16, ["cosformer"]).values(), about, origin, {"tokens": 32})
    (found,) = train.tables(json.loads(json.dumps(document)))
    assert found.header == ["attention", "16", "tokens/s at 16"]
    assert found.rows == [["softmax", "1", "64"], ["cosformer", "2.00", "128"]]


def test_a_batch_holds_the_tokens_asked_for() -> None:
    _, batch = train.language_model("cosformer", 16, 16, 70)
    assert batch["input_ids"].shape == (4, 16) and batch["input_ids"].max() < 256


def test_backends_give_the_same_loss() -> None:
    losses = []
    for label, backend in (("cosformer", "auto"), ("cosformer:chunked", "chunked")):
        model, batch = train.language_model(label, 300, 16, 300)
        assert {layer.attention.attention.backend for layer in model.model.layers} == {backend}
        losses.append(model(**batch).loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_training_step_learns_and_an_inference_step_does_not() -> None:
    model, batch = train.language_model("cosformer", 16, 16, 32)
    before = [p.detach().clone() for p in model.parameters()]
    steps.inference_step(model, batch)()
    assert not model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    steps.training_step(model, batch)()
    assert model.training
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True) if b.grad.abs().max() > 0)


def test_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {"softmax": 1.0, "cosformer": 1.0})
    found = rows(2048, ["cosformer", "synthesizer"], tokens=2048, memory=150_000_000)
    assert found["cosformer"].value == 1.0
    assert found["synthesizer"].value is None and found["synthesizer"].note == "out of memory: more than 0.15 GB"
    held = torch.zeros(300_000_000 // 4)  # the limit is gone again
    assert held.nbytes == 300_000_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--attentions", "magic"], "magic"),
        (["--backends", "magic"], "magic"),
        (["--lengths", "512", "--tokens", "256"], "--tokens"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_wrong_values_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "train", *words]) == cli.EXIT_USAGE
    assert message in capsys.readouterr().err


def test_the_engine_is_timed_behind_its_first_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(experiment: Any, run: Path, *, quiet: bool) -> None:
        run.mkdir()
        lines = [("train", 5, 9.0), ("train", 10, 10.0), ("train", 15, 13.0), ("eval", 15, 20.0)]
        text = "".join(json.dumps({"kind": k, "step": s, "seconds": t}) + "\n" for k, s, t in lines)
        (run / "metrics.jsonl").write_text(text)

    monkeypatch.setattr(engine, "train", fake)
    assert engine._engine(engine._experiment(15, 1)) == pytest.approx(0.4)


def test_the_engine_against_a_bare_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COSFORMER_CACHE", str(tmp_path))
    for name, value in (("ROWS", 1), ("LENGTH", 16), ("LOG_EVERY", 1), ("ROUNDS", 2)):
        monkeypatch.setattr(engine, name, value)
    row = engine.row(4, threads=1)
    assert row.id == "train/engine" and row.goal == 1.1 and row.better == "lower"
    assert row.milliseconds["engine"] > 0 and row.milliseconds["bare"] > 0
    assert row.value is not None and row.value > 0.2
    with pytest.raises(ValueError, match="too few"):
        engine.row(1, threads=1)
    assert training.train is engine.train


def test_a_file_of_wide_models_has_its_own_place() -> None:
    def found(*widths: int) -> dict[str, object]:
        return {"rows": [{"id": f"train/{width}/512/cosformer"} for width in widths] + [{"id": "train/engine"}]}

    assert train.marker(found(256)) == train.marker(found(256, 512)) == train.marker(found()) == "bench train"
    assert train.marker(found(512)) == "bench wide"
    assert train.marker(found(256) | {"command": "cosformer bench train --attentions all"}) == "bench train_zoo"


def test_a_timed_update_follows_an_untimed_one_of_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What training repeats is one model's update; the memory that another one left behind is not its matter."""
    order: list[str] = []
    monkeypatch.setattr(measure, "_seconds", lambda action, calls: action() or order.append("timed") or 1.0)
    monkeypatch.setattr(steps, "attempt", lambda build, memory: (partial(order.append, build()), ""))
    monkeypatch.setattr(steps, "training_step", lambda name, batch: name)
    monkeypatch.setattr(train, "language_model", lambda label, *_: (label, {}))
    rows(16, ["cosformer"])
    assert order == ["softmax", "softmax", "timed", "cosformer", "cosformer", "timed"]
