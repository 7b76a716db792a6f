"""``cosformer bench data``."""

import pytest

from cosformer.cli import main
from cosformer.lab.bench import data


def test_one_repeat_has_no_spread(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "data", "--repeats", "1"]) == 2
    assert "at least 2" in capsys.readouterr().err


@pytest.mark.slow
def test_every_measurement_is_made() -> None:
    found = list(data.measurements(repeats=2))
    assert [m.kind.split()[0] for m in found] == ["ListOps", *["Pathfinder"] * 3, "BPE"]
    assert all(m.value is not None and m.value > 0 for m in found)
