"""The README's table of speed before and after the native kernels: from small files with known content."""

import json
from pathlib import Path

import pytest

from cosformer.lab.bench.results import DIFFERENCE, Row, document
from cosformer.lab.paper import gain

MACHINE = {"cpu": "Abacus", "instructions": "beads", "threads": 2, "torch": "2"}


def forward(mode: str, n: int, value: float, low: float, unit: str = "times faster") -> Row:
    better = "lower" if unit == DIFFERENCE else "higher"
    return Row(f"forward/{mode}/{n}/sdpa", "a row", unit, better, value, low, value + 1)


def training(label: str, n: int, value: float) -> Row:
    return Row(f"train/256/{n}/{label}", "a row", "times softmax", "higher", value, value - 0.5, value + 0.5)


def write(folder: Path, name: str, *rows: Row) -> None:
    about = {"command": f"cosformer bench {name}", "date": "2000-01-01", "commit": "abc"}
    (folder / f"{name}.json").write_text(json.dumps(document(rows, MACHINE, about, {})))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path, "attention-chunked", forward("causal", 4096, 5.0, 4.0), forward("causal", 1, 800.0, 700.0, DIFFERENCE)
    )
    short = (forward("causal", 1, 21.0, 20.0, DIFFERENCE), forward("non-causal", 8, 43.0, 40.0, DIFFERENCE))
    ratios = (forward("causal", 64, 1.2, 1.1), forward("non-causal", 64, 1.1, 0.9), forward("causal", 128, 1.5, 1.4))
    write(tmp_path, "attention", *short, *ratios, forward("causal", 4096, 17.0, 16.0))
    write(tmp_path, "train", training("cosformer", 512, 1.25), training("cosformer:chunked", 512, 1.0))
    return tmp_path


def test_before_and_after_stand_side_by_side(folder: Path) -> None:
    lines = gain.readme_part(folder).splitlines()
    assert lines[0].endswith("| before: plain PyTorch | after: native kernel |")
    assert "| causal forward pass, 4,096 tokens | 5.00 (4.00 to 6.00) | 17.0 (16.0 to 18.0) |" in lines
    assert "| non-causal forward pass, 16,384 tokens | not run | not run |" in lines
    assert "| training, 512 tokens | 1.00 (0.50 to 1.50) | 1.25 (0.75 to 1.75) |" in lines
    assert len([line for line in lines if line.startswith("| ")]) == 2 + 6 + 3
    assert lines[-3].endswith(
        "Measured with `cosformer bench attention-chunked` (2000-01-01, commit abc), `cosformer bench attention` (2000-01-01, "
        "commit abc), `cosformer bench train` (2000-01-01, commit abc): Abacus (beads), 2 threads, torch 2."
    )


def test_short_input_is_spoken_of_as_measured(folder: Path) -> None:
    """At 64 tokens the quartile of one mode is below 1; the operator's difference is at most 43 µs."""
    last = gain.readme_part(folder).splitlines()[-1]
    assert last == "Below 64 tokens softmax is up to 0.04 ms a call faster; from 128 on cosFormer is."
    write(folder, "attention", forward("causal", 1, 60.0, 50.0, DIFFERENCE), forward("causal", 64, 1.2, 0.9))
    last = gain.readme_part(folder).splitlines()[-1]
    assert last.endswith("up to 0.06 ms a call faster; cosFormer is at none of the lengths measured.")


def test_without_results_everything_says_not_run(tmp_path: Path) -> None:
    lines = gain.readme_part(tmp_path).splitlines()
    assert all(line.endswith("| not run | not run |") for line in lines[2:11])
    assert lines[-1].endswith("Not run.")
