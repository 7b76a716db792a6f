"""``cosformer bench products``: what it measures, where a goal stands, and its tables."""

import json
import time

import pytest
import torch.nn.functional as F

from cosformer.cli import main
from cosformer.lab.bench import products
from cosformer.ops import projection
from cosformer.ops.native import available

pytestmark = pytest.mark.skipif(not available(), reason="the native kernels were not built")


def test_a_goal_stands_where_models_use_our_products(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(products, "QUICK_ROWS", (64, 128))
    monkeypatch.setattr(products, "QUICK_SHAPES", ((32, 16), (16, 16)))
    monkeypatch.setattr(projection, "FEWEST_ROWS", 128)
    monkeypatch.setattr(projection, "FEWEST_CHANNELS", 16)
    monkeypatch.setattr(projection, "LEAST_WORK", 1)
    monkeypatch.setattr(projection, "MEASURED", ("avx512", "avx2", "generic"))
    assert (
        main(["bench", "products", "--quick", "--repeats", "3", "--threads", "1", "--json", str(tmp_path / "p.json")])
        == 0
    )
    rows = {row["id"]: row for row in json.loads((tmp_path / "p.json").read_text())["rows"]}
    assert len(rows) == 8
    assert all(row["value"] > 0 for row in rows.values())
    assert {name for name, row in rows.items() if "goal" in row} == {
        name for name in rows if name.startswith("products/128/")
    }
    printed = capsys.readouterr().out
    assert "32 to 16" in printed
    assert "128 rows of 32 channels to 16, update" in printed


def test_the_figure_is_the_ratio_of_the_times(monkeypatch):
    def slow(*arguments):
        time.sleep(0.03)
        return F.linear(*arguments)

    monkeypatch.setattr(projection, "project_natively", slow)
    forward, update = products.shape_rows(64, 16, 16, repeats=3)
    assert forward.value > 10
    assert update.value > 10
