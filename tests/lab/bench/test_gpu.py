"""The benchmark for GPUs, run on the CPU as far as that goes, and the predictions beside it."""

import pytest
import torch

from cosformer.cli import main
from cosformer.lab.bench import gpu, roofline
from cosformer.lab.records import Measurement


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(gpu, "HEADS", 1)
    monkeypatch.setattr(gpu, "CHANNELS", (64,))
    monkeypatch.setattr(gpu, "DTYPES", (torch.float32,))
    monkeypatch.setattr(gpu, "LIMIT", 64)
    monkeypatch.setattr(gpu, "COPY", 4096)


def test_it_measures_what_it_says(tiny):
    found = list(gpu.measurements(lengths=(64, 300), device="cpu", repeats=3))
    kinds = {m.kind for m in found}
    assert kinds == {"matrix product", "copy", "forward", "training", "rate", "faster from"}
    against = [m for m in found if m.baseline == "sdpa" and m.kind != "faster from"]
    assert {(m.kind, m.mode, m.length) for m in against} == {
        (kind, mode, n) for kind in ("forward", "training") for mode in gpu.MODES for n in (64, 300)
    }
    assert all(m.value and m.milliseconds and m.baseline_milliseconds for m in against)


def test_crossover_is_where_it_stays_faster():
    def at(n, value):
        return Measurement(kind="forward", length=n, baseline="sdpa", unit="times faster", better="higher", value=value)

    assert gpu.crossover([at(1, 1.2), at(2, 0.9), at(4, 1.1), at(8, 2.0)]).value == 4
    assert gpu.crossover([at(1, 0.5), at(2, 0.9)]).value is None


def test_what_does_not_fit_is_a_note(tiny, monkeypatch):
    def full(*arguments, **options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(gpu.F, "scaled_dot_product_attention", full)
    found = list(gpu.measurements(lengths=(64,), device="cpu", repeats=2))
    assert {m.note for m in found if m.baseline == "sdpa" and m.kind == "forward"} == {"out of memory"}


def test_a_device_that_is_not_there_is_named(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["bench", "attention", "--device", "cuda"]) == 2
    assert "device 'cuda' cannot be used here" in capsys.readouterr().err


def test_predictions_grow_as_they_must():
    one, two = roofline.work(1, 16, 4096, 64), roofline.work(1, 16, 8192, 64)
    assert two.operations == 2 * one.operations and two.bytes == 2 * one.bytes
    a100 = roofline.GPUS["A100"]
    n = roofline.crossover(a100, 64)
    assert roofline.work(1, 16, n, 64).seconds(a100) < roofline.softmax_seconds(a100, 1, 16, n, 64)
    assert roofline.work(1, 16, n - 64, 64).seconds(a100) >= roofline.softmax_seconds(a100, 1, 16, n - 64, 64)
    assert roofline.markdown().count("\n| ") == len(list(roofline.predictions()))
