"""``cosformer bench jax``."""

import pytest

from cosformer.lab.bench import jax as bench
from cosformer.lab.records import Results
from cosformer.lab.render.bench_tables import tables

pytest.importorskip("jax", reason="jax is not installed: pip install 'cosformer[jax]'")


def test_every_mode_and_direction_is_measured_against_both():
    found = list(bench.measurements(lengths=(32,), repeats=1))
    assert [m.baseline for m in found] == [bench.TORCH, bench.SOFTMAX] * 4
    assert all(m.value is not None and m.value > 0 and m.milliseconds and m.baseline_milliseconds for m in found)
    results = Results(
        benchmark="jax", command="", date="", commit="", machine={}, settings={}, measurements=tuple(found)
    )
    (table,) = tables(results)
    assert len(table.rows) == 4 and table.header[1:] == [bench.TORCH, bench.SOFTMAX]
