"""The committed table of what the Triton kernels need of a GPU, and that it is still true."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.triton_resources import MOST, SHARED_LIMIT, configurations, main, markdown

TABLE = Path(__file__).parents[3] / "docs" / "how-to" / "gpu_kernels.json"
NVIDIA = ("sm_80", "sm_90", "sm_100")


@pytest.fixture(scope="module")
def table():
    return json.loads(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("target", NVIDIA)
def test_every_configuration_is_in_the_table_and_fits(table, target):
    names = {c.name for c in configurations()}
    assert len(names) <= MOST and set(table[target]) == names
    for name, found in table[target].items():
        assert found["shared"] <= SHARED_LIMIT[target], name


@pytest.mark.parametrize("target", NVIDIA)
def test_products_run_on_tensor_cores(table, target):
    for c in configurations():
        if c.kind in ("bf16", "tf32"):
            assert table[target][c.name]["instructions"], c.name


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_sixteen_bits_hardly_spill(table, target):
    for c in configurations():
        if c.dtype in ("bf16", "fp16") and c.width <= 128:  # factors of decay take registers of their own
            assert table[target][c.name]["spills"] <= (10 if c.decay else 4), c.name


def test_the_table_can_be_shown(table):
    lines = markdown(TABLE).splitlines()
    assert len(lines) == len(configurations()) + 2 and all(target in lines[0] for target in table)


def test_unknown_targets_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["sm_75"])
    assert "unknown target sm_75; known: sm_80" in capsys.readouterr().err


# a few of all: two dozen seconds each target
AGAIN = ("attend_rows/bf16/bf16/64", "key_gradients/bf16/bf16/64", "segment_sums/bf16/bf16/128")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", AGAIN)
def test_compiling_again_gives_no_more_than_the_table(table, tmp_path, target, name):
    pytest.importorskip("triton")
    again = tmp_path / "again.json"
    command = [sys.executable, "-m", "tools.triton_resources", target, "--only", name, "--write", str(again)]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    found = json.loads(again.read_text())[target][name]
    assert found["spills"] <= table[target][name]["spills"] and found["shared"] <= SHARED_LIMIT[target]
