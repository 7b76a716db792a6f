"""The comparison with independent packages: every pair runs, and the figure is the ratio of the two."""

import time

import pytest

from cosformer.cli import main
from cosformer.extras import MissingExtra
from cosformer.lab.bench import peers
from cosformer.lab.records import read_results


@pytest.mark.parametrize("pair", peers.PAIRS, ids=lambda pair: " ".join(pair[:4]))
def test_every_pair_runs_and_gives_tensors_of_one_size(monkeypatch, pair):
    monkeypatch.setattr(peers, "LENGTH", 1024)
    try:
        ours, theirs = pair[-1]()
    except RuntimeError as error:
        pytest.skip(str(error))
    a, b = ours(), theirs()
    b = b[0] if isinstance(b, tuple) else b
    assert a.numel() == b.numel() == 1024 * peers.WIDTH and a.isfinite().all()


def test_the_figure_is_the_ratio_of_the_times_and_what_is_missing_is_not_run(monkeypatch, tmp_path, capsys):
    def missing():
        raise MissingExtra("peers", "no such package")

    pair = (lambda: time.sleep(0.03), lambda: time.sleep(0.06))
    monkeypatch.setattr(
        peers, "PAIRS", [("x", "causal", "package", "", lambda: pair), ("y", "causal", "other", "", missing)]
    )
    file = tmp_path / "peers.json"
    assert main(["bench", "peers", "--repeats", "3", "--json", str(file)]) == 0
    first, second = read_results(file).measurements
    assert 0.3 < first.value < 0.8 and first.low <= first.value <= first.high and first.baseline == "package"
    assert second.value is None and second.note.startswith("not run")
    assert "not run" in capsys.readouterr().out


@pytest.mark.parametrize("pair", [p for p in peers.PAIRS if p[2] == "pytorch-fast-transformers" and p[1] == "causal"])
def test_causal_products_agree(pair):
    """The same numerators; ours divides by the row sums on top."""
    try:
        ours, theirs = pair[-1]()
    except RuntimeError as error:
        pytest.skip(str(error))
    a, b = ours().double(), theirs().double()
    # a row of ours is the package's row over one number
    divisor = (b * b).sum(-1, keepdim=True) / (a * b).sum(-1, keepdim=True)
    assert (a * divisor - b).abs().max() < 1e-4 * b.abs().max()
