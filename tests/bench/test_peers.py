"""The comparison with independent packages: every pair runs, and the figure is the ratio of the two."""

import json
import time

import pytest

from cosformer.bench import peers
from cosformer.cli import main


@pytest.mark.parametrize("name", [name for name, _, _ in peers.PAIRS])
def test_every_pair_runs_and_gives_tensors_of_one_size(monkeypatch, name):
    monkeypatch.setattr(peers, "LENGTH", 1024)
    pair = {name: pair for name, _, pair in peers.PAIRS}[name]
    try:
        ours, theirs = pair()
    except RuntimeError as error:
        pytest.skip(str(error))
    a, b = ours(), theirs()
    b = b[0] if isinstance(b, tuple) else b
    assert a.numel() == b.numel() == 1024 * peers.WIDTH and a.isfinite().all()


def test_the_figure_is_the_ratio_of_the_times(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        peers, "PAIRS", [("x", "package", lambda: (lambda: time.sleep(0.03), lambda: time.sleep(0.06)))]
    )
    assert main(["bench", "peers", "--repeats", "3", "--json", str(tmp_path / "peers.json")]) == 0
    (row,) = json.loads((tmp_path / "peers.json").read_text())["rows"]
    assert 0.4 < row["value"] < 0.7
    assert "x over package" in capsys.readouterr().out


def test_causal_products_agree_and_their_goals_are_named():
    """The same numerators; ours divides by the row sums on top."""
    pairs = {name: pair for name, _, pair in peers.PAIRS}
    assert set(peers.GOALS) <= set(pairs)
    for name in peers.GOALS:
        try:
            ours, theirs = pairs[name]()
        except RuntimeError as error:
            pytest.skip(str(error))
        a, b = ours().double(), theirs().double()
        # a row of ours is the package's row over one number
        divisor = (b * b).sum(-1, keepdim=True) / (a * b).sum(-1, keepdim=True)
        assert (a * divisor - b).abs().max() < 1e-4 * b.abs().max()
