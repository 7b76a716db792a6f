"""The comparison with independent packages: every pair runs, and the figure is the ratio of the two."""

import json
import time

import pytest

from cosformer.cli import main
from cosformer.extras import MissingExtra
from cosformer.lab.bench import peers
from cosformer.lab.bench.results import Row, document


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


def test_a_package_that_is_missing_is_not_run_and_its_goal_stays(monkeypatch, tmp_path, capsys):
    def pair():
        raise MissingExtra("peers", "no such package")

    monkeypatch.setattr(peers, "PAIRS", [("linear, causal", "package", pair)])
    assert main(["bench", "peers", "--json", str(tmp_path / "peers.json")]) == 0
    (row,) = json.loads((tmp_path / "peers.json").read_text())["rows"]
    assert "value" not in row and row["goal"] == 0.333 and row["note"].startswith("not run")
    assert "not run" in capsys.readouterr().out


def test_the_results_go_into_a_page_with_what_was_wanted_and_reached(tmp_path):
    machine: dict[str, str] = dict.fromkeys(
        ("cpu", "instructions", "cores", "threads", "system", "python", "torch"), "x"
    )
    about = {"command": "cosformer bench peers", "date": "2000-01-01", "commit": None}
    rows = [
        Row("peers/x", "x over package", "times the package's", "lower", 0.5, 0.4, 0.6, goal=1.0),
        Row("peers/y", "y over package", "times the package's", "lower", 0.5, 0.4, 0.6, goal=0.25),
    ]
    source, page = tmp_path / "peers.json", tmp_path / "speed.md"
    source.write_text(json.dumps(document(rows, machine, about, {"length": 4096})))
    page.write_text("<!-- bench peers:start -->\nold\n<!-- bench peers:end -->\n")
    assert main(["bench", "peers", "--read", str(source), "--into", str(page)]) == 0
    lines = page.read_text().splitlines()
    assert "|  | measured | wanted | reached |" in lines and "old" not in lines
    assert "| x over package | 0.50 (0.40 to 0.60) times the package's | at most 1 | yes |" in lines
    assert "| y over package | 0.50 (0.40 to 0.60) times the package's | at most 0.25 | no |" in lines


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
