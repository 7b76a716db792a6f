"""The kernels' benchmark: a figure is what the times make it."""

import pytest

from cosformer.cli import main
from cosformer.lab.bench import attention, measure, native
from cosformer.lab.records import read_results
from cosformer.ops import native as kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.describe())


def test_every_shape_and_mode_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(native, "SHAPE_LENGTH", 100)
    monkeypatch.setattr(attention, "MATMUL", 64)
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 1e-4)
    file = tmp_path / "native.json"
    words = ["bench", "native", "--lengths", "130,160", "--threads", "1", "--repeats", "3"]
    assert main([*words, "--json", str(file)]) == 0
    found = read_results(file)
    assert all(m.value is not None and m.value > 0 for m in found.measurements)
    limits = {(m.kind, m.mode, m.length, m.variant) for m in found.find(baseline="limit")}
    assert len(limits) == 2 * 2 * (2 + len(native.SHAPES))  # forward and backward in both modes
    assert len(found.find(dtype="bfloat16")) == 4 and len(found.find(kind="step")) == 1
    assert "kernels" in found.machine and found.command == f"cosformer {' '.join(words)}"
    assert "8 heads of 256 channels" in capsys.readouterr().out


def test_figures_come_from_the_times(monkeypatch):
    times = {"limit": [2.0, 2.0, 2.0], "forward": [3.0, 3.0, 3.0], "backward": [8.0, 8.0, 8.0], "step": [2e-5] * 3}
    monkeypatch.setattr(native, "interleaved", lambda actions, **_: {name: times[name] for name in actions})
    # 8 H N D E = 2 * 1024^3 operations: as many as one matrix product
    assert [m.value for m in native.against_limit(native.PLAIN, "causal", 8192, 3)] == [1.5, 4.0]
    assert attention.share(8192, 1, 32, 128) == 1 / 8
    assert native.one_step(3).value == 20.0


def test_without_the_library_it_says_why(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(kernels, "describe", lambda: "no compiler")
    assert main(["bench", "native"]) != 0
    assert "no compiler" in capsys.readouterr().err
