"""``cosformer bench text``: our speeds beside the paper's table 5; at sizes that take seconds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from cosformer import cli
from cosformer.lab import numbers as paper
from cosformer.lab.bench import measure, results, table, text
from cosformer.lab.bench.results import Row

ABOUT = {"cpu": "x", "threads": 2, "torch": "2", "instructions": "y", "cores": 2, "system": "z", "python": "3"}


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def document(rows: list[Row]) -> dict[str, Any]:
    origin = {"command": "cosformer bench text", "date": "2000-01-01", "commit": None}
    return json.loads(json.dumps(results.document(rows, ABOUT, origin, {"batch": 2, "width": 256})))


def speed(name: str, ours: float, baseline: float | None, mode: str = "training", n: int = 1000) -> Row:
    """A row of ``ours`` steps per second where the Transformer makes ``baseline``."""
    milliseconds = {name: 1e3 / ours} | ({} if baseline is None else {"softmax": 1e3 / baseline})
    value = None if baseline is None else ours / baseline
    return Row(f"text/{mode}/{n}/{name}", "speed", "times", "higher", value, value, value, milliseconds=milliseconds)


def memory(name: str, megabytes: float | None, mode: str = "training", n: int = 1000, note: str = "") -> Row:
    row_id = f"text/memory/{mode}/{n}/{name}"
    return Row(row_id, "memory", "MB", "lower", megabytes, megabytes, megabytes, note=note)


def test_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, readme = tmp_path / "text.json", tmp_path / "README.md"
    readme.write_text("before\n<!-- bench text:start -->\nold\n<!-- bench text:end -->\nafter\n")
    words = ["--lengths", "32,1000", "--batch", "1", "--width", "16", "--attentions", "synthesizer,softmax,cosformer"]
    words += ["--threads", "1", "--quick", "--memory-limit", "0.1"]
    assert cli.main(["bench", "text", *words, "--json", str(target)]) == 0
    out = capsys.readouterr().out
    found = results.read(target)
    assert found["command"] == "cosformer bench text " + " ".join(
        [
            "--lengths 32,1000 --attentions synthesizer,softmax,cosformer --batch 1 --width 16 --threads 1 --memory-limit 0.1 --quick"
        ]
    )
    rows = {row.id: row for row in results.rows_of(found)}
    for mode in text.MODES:
        for n in (32, 1000):
            assert rows[f"text/{mode}/{n}/softmax"].value == 1.0
            row = rows[f"text/{mode}/{n}/cosformer"]
            assert row.value is not None and row.value > 0 and set(row.milliseconds) == {"cosformer", "softmax"}
            # what a model this small needs, its gradients apart, can fit into memory that was free already
            peak = rows[f"text/memory/{mode}/{n}/cosformer"].value
            assert peak is not None and (peak > 0 or n == 32 or mode == "inference")
    # 4 layers x 4 heads of 1000 x 1000 numbers are kept for the gradient, and more than 100 MB
    crossed = rows["text/memory/training/1000/synthesizer"]
    assert crossed.value is None and crossed.note == "out of memory: more than 0.1 GB"
    assert "text/training/1000/synthesizer" not in rows and text.CROSS in out
    assert cli.main(["bench", "text", "--read", str(target), "--into", str(readme)]) == 0
    changed = readme.read_text()
    assert changed.startswith("before\n") and changed.endswith("after\n") and "old" not in changed
    assert table.as_markdown(found, text.tables(found)) in changed


def test_ratios_are_speeds_over_the_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"softmax": [0.6, 0.6], "cosformer": [0.2, 0.2]}
    monkeypatch.setattr(measure, "interleaved", lambda actions, **options: {x: times[x] for x in actions})
    found = {r.id: r for r in text.speed_rows(16, ["cosformer", "softmax"], batch=1, width=16, memory=10**9, repeats=2)}
    for mode in text.MODES:
        assert found[f"text/{mode}/16/cosformer"].value == pytest.approx(3.0)
        assert found[f"text/{mode}/16/cosformer"].milliseconds == {"cosformer": 200.0, "softmax": 600.0}
    alone = list(text.speed_rows(16, ["cosformer"], batch=1, width=16, memory=10**9, repeats=2))
    assert [row.value for row in alone] == [None, None]  # nothing to compare with, but the time stands
    assert all(row.milliseconds == {"cosformer": 200.0} for row in alone)


def test_tables_put_ours_beside_the_papers() -> None:
    rows = []
    for mode in text.MODES:
        rows += [memory(name, 5.0, mode) for name in ("cosformer", "softmax")]
        rows += [speed("cosformer", 30.0, 10.0, mode), speed("softmax", 10.0, 10.0, mode)]
        rows += [memory("longformer", None, mode, note="out of memory: more than 1 GB")]
        rows += [memory(name, 20.0, mode, 3000) for name in ("cosformer", "softmax", "longformer")]
        rows += [speed("cosformer", 3.0, None, mode, 3000)]
    found = text.tables(document(rows))
    assert [len(t.rows) for t in found] == [3, 3, 3, 3]
    inference, amounts, training, _ = found
    assert inference.header == ["", "1,000 ours", "1,000 paper", "3,000 ours", "3,000 paper"]
    assert inference.rows[0] == ["Transformer", "1.00", "1.00", "not run", "×"]
    assert inference.rows[1] == ["cosFormer", "3.00", "2.32", "-", "-"]  # 58.82 / 25.37
    assert training.rows[1][2] == "1.77"  # 12.27 / 6.95
    assert training.rows[2] == ["Longformer", "×", "0.63", "not run", "×"]
    assert amounts.rows[1] == ["cosFormer", "30.0", "3.00", "5.00", "20.0"]


def test_order_is_spearmans() -> None:
    def order(*speeds: float, names: tuple[str, ...] = ("performer", "cosformer", "softmax", "longformer")) -> Any:
        rows = [speed(name, ours, None) for name, ours in zip(names, speeds, strict=True)]
        return [row.value for row in text.order_rows("training", 1000, rows)]

    assert order(14.0, 12.0, 7.0, 4.0) == [1.0]
    assert order(4.0, 7.0, 12.0, 14.0) == [-1.0]
    assert order(12.0, 14.0, 7.0, 4.0) == [0.8]  # 1 - 6 (1 + 1) / (4 (16 - 1))
    assert order(2.0, 1.0, names=("performer", "cosformer")) == []
    assert order(3.0, 2.0, 1.0, names=("relu", "performer", "softmax")) == []  # relu is not in the paper's table
    assert list(text.order_rows("training", 999, [speed("performer", 1.0, 1.0, n=999)] * 3)) == []


def test_an_attention_that_brings_its_process_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(function: str, threads: int, **options: Any) -> Any:
        if "reformer" in options["names"]:
            raise RuntimeError("exit code -9")
        return [[name, mode, n, 10**6] for name in options["names"] for n in options["lengths"] for mode in text.MODES]

    monkeypatch.setattr(measure, "in_fresh_process", fresh)
    sizes = {"batch": 1, "width": 16, "memory": 10**9, "threads": 1}
    found = {row.id: row for row in text.memory_rows(["cosformer", "reformer"], [8], **sizes)}
    assert len(found) == 4
    assert found["text/memory/training/8/cosformer"].value == 1.0
    assert found["text/memory/training/8/reformer"].note == "not run: exit code -9"


def test_the_model_is_the_arenas() -> None:
    model, batch = text.text_model("cosformer", 1000, 2, 256)
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (4, 256, 1024)
    assert (config.num_attention_heads, config.head_dim, config.hidden_dropout_prob) == (4, 64, 0.0)
    assert batch["input_ids"].shape == (2, 1000) and batch["input_ids"].min() >= 1 and batch["input_ids"].max() <= 256


def test_the_attentions_are_the_papers() -> None:
    assert set(text.PAPER_ATTENTIONS) == set(paper.TABLE5["inference"]) and len(text.PAPER_ATTENTIONS) == 12


@pytest.mark.parametrize("words", [["--attentions", "magic"], ["--read", "missing.json"]])
def test_wrong_values_are_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "text", *words]) == cli.EXIT_USAGE
    assert words[1] in capsys.readouterr().err
