"""``cosformer bench generate``: states against caches."""

import pytest

pytest.importorskip("transformers")

from cosformer import cli
from cosformer.lab.bench import generate
from cosformer.lab.records import read_results
from cosformer.lab.render.bench_tables import tables


def test_states_are_measured_and_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(generate, "SIZES", generate.SMALL)
    target, page = tmp_path / "generate.json", tmp_path / "speed.md"
    words = ["--lengths", "16,64", "--tokens", "0", "--repeats", "2", "--threads", "1", "--json", str(target)]
    assert cli.main(["bench", "generate", *words]) == 0
    found = read_results(target)
    assert [(m.kind, m.length) for m in found.measurements] == [
        ("step", 16),
        ("state", 16),
        ("step", 64),
        ("state", 64),
        ("slowest token", None),
    ]
    short, long = found.find(kind="state")
    assert long.baseline_megabytes > 3.9 * short.baseline_megabytes and long.megabytes == short.megabytes
    page.write_text("a\n<!-- bench generate:start -->\nold\n<!-- bench generate:end -->\nb\n")
    assert cli.main(["bench", "generate", "--read", str(target), "--into", str(page)]) == 0
    text = page.read_text()
    assert tables(found)[0].markdown in text and "old" not in text and text.startswith("a\n") and text.endswith("b\n")
    assert [row[0] for row in tables(found)[0].rows] == ["16", "64"]


def test_step_loop_carries_one_size():
    found = generate.loop(40)
    assert found["first_bytes"] == found["last_bytes"] > 0
    assert found["warm"] == 20


@pytest.mark.slow
def test_step_loop_to_100_000_tokens():
    growth, state = generate.long_run(100_000, threads=1)
    assert state.value == 1
    assert growth.unit == "MB" and growth.value < 20
