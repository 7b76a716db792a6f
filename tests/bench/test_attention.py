"""``cosformer bench attention``: the operator and its baselines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cosformer import cli, machine
from cosformer.bench import attention, measure
from cosformer.bench.attention import faster_from
from cosformer.bench.released import released_attention, released_bytes
from cosformer.bench.runner import blocks, tables
from cosformer.ops.operator import cosformer_attention
from cosformer.report.measurements import DIFFERENCE, Measurement, read_results


@pytest.mark.parametrize("causal", [True, False])
def test_the_authors_implementation_gives_our_numbers(causal: bool) -> None:
    """The baseline of the speed comparison computes the same function."""
    q, k, v = (torch.randn(2, 3, 50, 8, dtype=torch.float64) for _ in range(3))
    inputs = [x.permute(2, 0, 1, 3).flatten(2) for x in (q, k, v)]
    out = released_attention(*inputs, num_heads=3, causal=causal)
    expected = cosformer_attention(q, k, v, causal=causal, max_len=50).permute(2, 0, 1, 3).flatten(2)
    assert out.shape == (50, 2, 24)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


def test_the_authors_implementation_takes_about_the_memory_that_is_said() -> None:
    """The outer products and their running sum, and little else."""
    n, heads, d = 1024, attention.HEADS, attention.HEAD_DIM
    outer = n * heads * 2 * d * d * 4
    assert 2 * outer <= released_bytes(n, heads, d, True) <= 2.5 * outer
    assert released_bytes(n, heads, d, False) < outer / 4


@pytest.fixture
def short_run(monkeypatch) -> None:
    """Sizes at which the whole benchmark takes seconds."""
    monkeypatch.setattr(attention, "PEAK_LENGTH", 2048)
    monkeypatch.setattr(attention, "MILLION", 4096)
    monkeypatch.setattr(attention, "LATE_TOKEN", 4000)
    monkeypatch.setattr(attention, "LINEAR_FROM", 128)
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.001)


def test_a_whole_run(short_run: None, tmp_path: Path, capsys) -> None:
    target = tmp_path / "new.json"
    words = ["bench", "attention", "--lengths", "8,64,128", "--threads", "1", "--repeats", "3"]
    assert cli.main([*words, "--json", str(target)]) == 0
    found = read_results(target)
    assert found.command == f"cosformer {' '.join(words)}"
    assert found.machine["threads"] == 1 and found.settings["lengths"] == [8, 64, 128]
    for mode in ("causal", "non-causal"):
        short = found.one(kind="forward", mode=mode, length=8, baseline="sdpa")
        assert short is not None and short.unit == DIFFERENCE
        at_128 = {m.baseline for m in found.find(kind="forward", mode=mode, length=128) if (m.value or 0) > 0}
        assert at_128 == {"sdpa", "authors", "limit"}
        training = found.one(kind="training", mode=mode, length=128)
        assert training is not None and (training.value or 0) > 0
    assert {m.kind: m.length for m in found.measurements[-3:]} == {
        "training memory": 2048,
        "time per token": 4096,
        "step": 4000,
    }
    for m in found.measurements:
        assert m.value is not None and (m.low or m.value) <= m.value <= (m.high or m.value)
    out = capsys.readouterr().out
    assert "not run" not in out and "8 heads of 64 channels" in out and found.machine["cpu"] in out


def test_what_does_not_fit_is_not_run(monkeypatch, results) -> None:
    monkeypatch.setattr(attention, "LINEAR_FROM", 64)
    monkeypatch.setattr(machine, "memory", lambda field: 1)
    found = results("attention", *attention.forward(64, "causal", backend="auto", repeats=1))
    left_out = found.one(baseline="authors")
    assert left_out is not None and left_out.value is None and left_out.note.startswith("not run: needs")
    assert "not run" in tables(found)[0].text


def test_the_matmul_limit_is_what_it_says(monkeypatch) -> None:
    """A run as fast as the matmul rate allows scores 1."""
    n = 2048
    matmul_seconds = 0.01
    rate = 2 * 1024**3 / matmul_seconds
    at_the_limit = 8 * 1 * 8 * n * 64 * 64 / rate
    times = {"cosformer": [at_the_limit], "sdpa": [1.0], "authors": [1.0], "matmul": [matmul_seconds]}
    monkeypatch.setattr(attention, "interleaved", lambda actions, repeats: times)
    found = {m.baseline: m.value for m in attention.forward(n, "causal", backend="auto", repeats=1)}
    assert found["limit"] == pytest.approx(1.0, rel=1e-3)
    assert found["sdpa"] == pytest.approx(1 / at_the_limit, rel=1e-3)


def test_where_it_becomes_faster_is_where_both_modes_are(results) -> None:
    def forward(mode: str, n: int, low: float) -> Measurement:
        place: dict[str, Any] = {"kind": "forward", "mode": mode, "length": n, "baseline": "sdpa"}
        return Measurement(**place, unit="x", better="higher", value=low + 0.1, low=low, high=low + 0.2)

    slow = [forward("causal", 64, 0.95), *(forward("non-causal", n, 0.95) for n in (64, 128))]
    fast = [*(forward("causal", n, 2.0) for n in (128, 256, 512)), forward("non-causal", 256, 2.0)]
    assert blocks(results("attention", *slow, *fast))["faster from"] == "256"
    assert blocks(results("attention", *slow))["faster from"] == "no measured number of"
    alone = [replace(m, value=m.low, low=None, high=None) for m in (*slow, *fast)]  # of one repeat, which has no spread
    assert faster_from(alone) == 256
