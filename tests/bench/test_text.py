"""``python -m benchmarks text``: our speeds beside the paper's table 5; at sizes that take seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks import text
from benchmarks.__main__ import main
from benchmarks.text import CROSS, tables
from cosformer.bench import steps
from cosformer.report.measurements import Measurement, Results, read_results
from studies.cosformer2022 import paper


def speed(name: str, ours: float, softmax: float | None, mode: str = "training", n: int = 1000) -> Measurement:
    """Of ``ours`` steps per second where the Transformer makes ``softmax``."""
    value = None if softmax is None else ours / softmax
    place: dict[str, Any] = {"kind": "speed", "attention": name, "mode": mode, "length": n}
    return Measurement(**place, unit="times", better="higher", value=value, milliseconds=1e3 / ours)


def memory(name: str, megabytes: float | None, mode: str = "training", n: int = 1000, note: str = "") -> Measurement:
    place: dict[str, Any] = {"kind": "memory", "attention": name, "mode": mode, "length": n}
    return Measurement(**place, unit="MB", better="lower", value=megabytes, note=note)


def test_a_whole_run(tmp_path: Path, capsys) -> None:
    target = tmp_path / "text.json"
    words = ["--attentions", "synthesizer,softmax,cosformer", "--lengths", "32,1000", "--batch", "1", "--width", "16"]
    words += ["--device", "cpu", "--memory-limit", "0.1", "--threads", "1", "--quick"]
    assert main(["text", *words, "--json", str(target)]) == 0
    out = capsys.readouterr().out
    found = read_results(target)
    assert found.command == f"python -m benchmarks text {' '.join(words)}" and found.settings["device"] == "cpu"
    for mode in text.MODES:
        for n in (32, 1000):
            place = {"mode": mode, "length": n}
            softmax, ours = (found.one(kind="speed", attention=name, **place) for name in ("softmax", "cosformer"))
            assert softmax is not None and softmax.value == 1.0
            assert ours is not None and ours.value and ours.milliseconds and ours.baseline_milliseconds
            # what a model this small needs, its gradients apart, can fit into memory that was free already
            peak = found.one(kind="memory", attention="cosformer", **place)
            assert peak is not None and peak.value is not None and (peak.value > 0 or n == 32 or mode == "inference")
    # 4 layers x 4 heads of 1000 x 1000 numbers are kept for the gradient, and more than 100 MB
    crossed = found.one(kind="memory", mode="training", length=1000, attention="synthesizer")
    assert crossed is not None and crossed.value is None and crossed.note == "out of memory: more than 0.1 GB"
    assert not found.find(kind="speed", length=1000, attention="synthesizer") and CROSS in out


def test_a_gpu_finishes_before_the_clock_stops(monkeypatch) -> None:
    """Not run on a GPU here: that the step waits for one, and that its memory is asked for, is what can be seen."""
    calls: list[str] = []

    class Batch:
        device = torch.device("cuda")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("synchronize"))
    steps.inference_step(torch.nn.Identity(), {"input": Batch()})()  # pyright: ignore[reportArgumentType]
    assert calls == ["synchronize"]
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 350)
    assert steps.peak(lambda: calls.append("step"), 0, "cuda") == 250 and calls[1:] == ["reset", "step"]

    def full() -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    assert steps.peak(full, 0, "cuda") == "out of memory: more than the GPU has"


def test_ratios_are_speeds_over_the_transformers(monkeypatch) -> None:
    times = {"softmax": [0.6, 0.6], "cosformer": [0.2, 0.2]}
    monkeypatch.setattr(steps, "interleaved", lambda actions, **options: {x: times[x] for x in actions})
    sizes = {"batch": 1, "width": 16, "memory": 10**9, "repeats": 2}
    found = [m for m in text.speed_at(16, ["cosformer", "softmax"], **sizes) if m.attention == "cosformer"]
    assert [m.mode for m in found] == list(text.MODES)
    assert all(m.value == pytest.approx(3.0) and m.milliseconds == 200.0 for m in found)
    alone = list(text.speed_at(16, ["cosformer"], **sizes))
    assert [(m.value, m.milliseconds) for m in alone] == [(None, 200.0)] * 2


def test_tables_put_ours_beside_the_papers(results: Callable[..., Results]) -> None:
    rows = []
    for mode in text.MODES:
        rows += [memory(name, 5.0, mode) for name in ("cosformer", "softmax")]
        rows += [speed("cosformer", 30.0, 10.0, mode), speed("softmax", 10.0, 10.0, mode)]
        rows += [memory("longformer", None, mode, note="out of memory: more than 1 GB")]
        rows += [memory(name, 20.0, mode, 3000) for name in ("cosformer", "softmax", "longformer")]
        rows += [speed("cosformer", 3.0, None, mode, 3000)]
    inference, amounts, training, *_ = tables(results("text", *rows, batch=2, width=256))
    assert list(inference.header) == ["", "1,000 ours", "1,000 paper", "3,000 ours", "3,000 paper"]
    assert inference.rows[0] == ["Transformer", "1.00", "1.00", "not run", "×"]
    assert inference.rows[1] == ["cosFormer", "3.00", "2.32", "-", "-"]  # 58.82 / 25.37
    assert training.rows[1][2] == "1.77"  # 12.27 / 6.95
    assert training.rows[2] == ["Longformer", "×", "0.63", "not run", "×"]
    assert amounts.rows[1] == ["cosFormer", "30.0", "3.00", "5.00", "20.0"]


def test_order_is_spearmans() -> None:
    def order(*ours: float, names: tuple[str, ...] = ("performer", "cosformer", "softmax", "longformer")) -> Any:
        found = [speed(name, x, None) for name, x in zip(names, ours, strict=True)]
        return [m.value for m in text.order_at("training", 1000, found)]

    assert order(14.0, 12.0, 7.0, 4.0) == [1.0]
    assert order(4.0, 7.0, 12.0, 14.0) == [-1.0]
    assert order(12.0, 14.0, 7.0, 4.0) == [0.8]  # 1 - 6 (1 + 1) / (4 (16 - 1))
    assert order(2.0, 1.0, names=("performer", "cosformer")) == []
    assert order(3.0, 2.0, 1.0, names=("relu", "performer", "softmax")) == []  # relu is not in the paper's table
    assert list(text.order_at("training", 999, [speed("performer", 1.0, 1.0, n=999)] * 3)) == []


def test_an_attention_that_brings_its_process_down_is_named(monkeypatch) -> None:
    def fresh(function: str, threads: int, **options: Any) -> Any:
        if "reformer" in options["names"]:
            raise RuntimeError("exit code -9")
        return [[name, mode, n, 10**6] for name in options["names"] for n in options["lengths"] for mode in text.MODES]

    monkeypatch.setattr(text, "in_fresh_process", fresh)
    sizes = {"batch": 1, "width": 16, "memory": 10**9, "threads": 1}
    found = {(m.attention, m.mode): m for m in text.memory_at(["cosformer", "reformer"], [8], **sizes)}
    assert len(found) == 4
    assert found["cosformer", "training"].value == 1.0
    assert found["reformer", "training"].note == "not run: exit code -9"


def test_the_model_is_the_arenas() -> None:
    model, batch = text.text_model("cosformer", 1000, 2, 256)
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (4, 256, 1024)
    assert (config.num_attention_heads, config.head_dim, config.hidden_dropout_prob) == (4, 64, 0.0)
    assert batch["input_ids"].shape == (2, 1000) and batch["input_ids"].min() >= 1 and batch["input_ids"].max() <= 256


def test_the_attentions_are_the_papers() -> None:
    assert set(text.PAPER_ATTENTIONS) == set(paper.TABLE5["inference"]) and len(text.PAPER_ATTENTIONS) == 12


@pytest.mark.parametrize(
    ("words", "message"), [("text --attentions magic", "magic"), ("data --repeats 1", "at least 2")]
)
def test_wrong_values_are_named(words: str, message: str, capsys) -> None:
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err
