"""The kernels' benchmark: every row is there with its goal, and a figure is what the times make it."""

import json

import pytest

from cosformer.cli import main
from cosformer.lab.bench import measure, native
from cosformer.lab.bench.results import rows_of
from cosformer.ops import native as kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.describe())


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(native, "LENGTHS", (130, 160))
    monkeypatch.setattr(native, "SHORT_LENGTHS", (16,))
    monkeypatch.setattr(native, "SHAPE_LENGTH", 100)
    monkeypatch.setattr(native, "STEPS", 40)
    monkeypatch.setattr(native, "MATMUL", 64)
    monkeypatch.setattr(native, "AGAINST_SDPA", {(mode, n): 1.0 for mode in native.MODES for n in (130, 160)})
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 1e-4)


def test_every_row_is_measured_and_has_a_goal(small, tmp_path, capsys):
    file = tmp_path / "native.json"
    assert main(["bench", "native", "--repeats", "3", "--threads", "1", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    rows = {row.id: row for row in rows_of(found)}
    assert all(row.value is not None and row.value > 0 and row.goal for row in rows.values())
    # lengths and shapes against the limit, lengths against SDPA, bfloat16, steps
    assert len(rows) == 2 * (2 * (3 + 1) + 1) + len(native.SHAPES) * 2 * 3 + 2 * 2 + 3
    assert rows["native/forward/causal/100/8x256x256"].goal == 2.34
    assert rows["native/steps/40"].met
    assert "kernels" in found["machine"] and found["command"] == "cosformer bench native --threads 1"
    assert "times the limit" in capsys.readouterr().out
    assert main(["bench", "native", "--read", str(file), "--markdown"]) == 0
    assert "| one-token step, 8 heads of 64 channels |" in capsys.readouterr().out


def test_figures_come_from_the_times(monkeypatch):
    times = {"limit": [2.0, 2.0, 2.0], "forward": [3.0, 3.0, 3.0], "kept": [2.0, 2.0, 2.0], "backward": [8.0, 8.0, 8.0]}
    monkeypatch.setattr(measure, "interleaved", lambda actions, **_: {name: times[name] for name in actions})
    # 8 H N D E = 2 * 1024^3 operations: as many as one matrix product
    rows = list(native.against_limit(native.PLAIN, "causal", 8192, 3))
    assert [row.value for row in rows] == [1.5, 1.0, 4.0]
    assert [row.goal for row in rows] == [1.8, 1.5, 4.8]
    assert native.Shape("", heads=1, d=32, e=128).share(8192) == 1 / 8
    times |= {"cosformer": [1.0, 1.0, 1.0], "sdpa": [30.0, 30.0, 30.0], "step": [2e-5] * 3, "sum": [1e-5] * 3}
    assert native.against_sdpa("causal", 16, 12.0, 3).value == 30.0
    assert native.one_step(3).value == 20.0
    assert native.many_steps(3, batch=2).value == 2.0


def test_without_the_library_it_says_why(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(kernels, "describe", lambda: "no compiler")
    assert main(["bench", "native"]) != 0
    assert "no compiler" in capsys.readouterr().err
