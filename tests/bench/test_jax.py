"""``python -m benchmarks jax``."""

import pytest

from benchmarks import jax as bench
from cosformer.bench.runner import blocks, tables

pytest.importorskip("jax", reason="jax is not installed: pip install 'cosformer[jax]'")


def test_every_mode_and_direction_is_measured_against_both(results):
    found = list(bench.measurements(lengths=(32,), memory_lengths=(), repeats=1))
    assert [m.baseline for m in found] == [bench.TORCH, bench.SOFTMAX] * 4
    assert all(m.value is not None and m.value > 0 and m.milliseconds and m.baseline_milliseconds for m in found)
    (table,) = tables(results("jax", *found), "benchmarks")
    assert len(table.rows) == 4 and table.header[1:] == [bench.TORCH, bench.SOFTMAX]


def test_memory_stands_beside_the_time(results, monkeypatch):
    sizes = {False: 1000, True: 3000}
    monkeypatch.setattr(bench, "allocated", lambda n, causal, backward: n * sizes[backward])
    found = list(bench.measurements(lengths=(), memory_lengths=(1000, 4000)))
    (table,) = tables(results("jax", *found), "benchmarks")
    assert table.rows[0] == ["causal, forward", "1.00", "4.00", "4.00x (N^1.00)"]
    assert len(table.rows) == 4 and table.rows[1][1:3] == ["3.00", "12.0"]
    time = bench.measurements(lengths=(32,), memory_lengths=(), repeats=1)
    block = blocks(results("jax", *time, *found), "benchmarks")["bench jax"]
    assert "in multiples of the time" in block and "| causal, forward | 1.00 | 4.00 |" in block


def test_what_xla_allocates_holds_the_results_and_grows_with_the_length():
    short, long = (bench.allocated(n, causal=True, backward=True) for n in (1024, 4096))
    results = 3 * 1024 * bench.HEADS * bench.HEAD_DIM * 4
    assert results < short and 3.5 < long / short < 4.1
