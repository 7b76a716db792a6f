"""A machine on which torch's bfloat16 products die: commands and tests run on it, and a library import changes nothing.

Such a machine is played by ``sitecustomize``, which every Python process of the test loads first: the processor
promises AMX, and a process that loads torch without the setting is killed by SIGILL.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cosformer import processor

ROOT = Path(__file__).parents[1]
MACHINE = """
import os, pathlib, signal, sys
from cosformer import processor
processor.CPUINFO = pathlib.Path({cpuinfo!r})

def load(event, arguments):
    if event == "import" and arguments[0] == "torch":
        with open({loads!r}, "a") as file:
            file.write(os.environ.get(processor.VARIABLE, "nothing") + "\\n")
        if os.environ.get(processor.VARIABLE) not in {cures!r}:
            os.kill(os.getpid(), signal.SIGILL)

sys.addaudithook(load)
"""


class Machine:
    """Subprocesses in which torch loads only with one of ``cures`` in the environment (None: without)."""

    def __init__(
        self, folder: Path, cures: tuple[str | None, ...], flags: str = "fpu avx512f amx_bf16 amx_tile"
    ) -> None:
        self.folder, self.loads = folder, folder / "loads"
        cpuinfo = folder / "cpuinfo"
        cpuinfo.write_text(f"processor\t: 0\nmodel name\t: Abacus\nflags\t\t: {flags}\n")
        text = MACHINE.format(cpuinfo=str(cpuinfo), loads=str(self.loads), cures=cures)
        (folder / "sitecustomize.py").write_text(text)

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Python with these arguments."""
        plain = {key: value for key, value in os.environ.items() if key != processor.VARIABLE}
        plain |= {"PYTHONPATH": f"{self.folder}:{ROOT / 'src'}", "COSFORMER_HOME": str(self.folder / "home")}
        plain |= {"OMP_NUM_THREADS": "1", **environment}
        return subprocess.run([sys.executable, *words], env=plain, cwd=self.folder, capture_output=True, text=True)

    def loaded_with(self) -> list[str]:
        """What the variable was in each process that loaded torch, in order."""
        return self.loads.read_text().split() if self.loads.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, ("AVX512_CORE_FP16",))


def test_the_played_machine_kills(machine: Machine) -> None:
    assert machine.run("-c", "import torch").returncode == -signal.SIGILL
    assert machine.run("-c", "import torch", ONEDNN_MAX_CPU_ISA="AVX512_CORE_FP16").returncode == 0


def test_check_runs_and_says_what_to_set(machine: Machine) -> None:
    done = machine.run("-m", "cosformer", "check", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [processor.describe("AVX512_CORE_FP16")]
    found = json.loads(done.stdout)["processor"]
    assert found["name"] == "Abacus"
    assert found["bfloat16"]["set"] == "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" and not found["bfloat16"]["works"]


def test_a_command_tries_once_and_remembers(machine: Machine) -> None:
    assert machine.run("-m", "cosformer", "generate", "--help").returncode == 0
    assert machine.loaded_with() == []  # help loads nothing
    for _ in range(2):
        done = machine.run("-m", "cosformer", "list", "attentions")
        assert done.returncode == 0 and done.stderr.splitlines() == [processor.describe("AVX512_CORE_FP16")]
    assert machine.loaded_with()[:2] == ["nothing", "AVX512_CORE_FP16"]  # the probe
    assert machine.loaded_with().count("nothing") == 1


def test_training_in_bfloat16_runs(machine: Machine) -> None:
    pytest.importorskip("tensorboard")
    recipe = ("train", "lm-stdlib-small", "--train.precision", "bf16", "--train.steps", "1", "--quiet")
    small = ("--model.num-hidden-layers", "1", "--data.length", "32", "--train.batch", "2", "--train.tracker", "none")
    done = machine.run("-m", "cosformer", *recipe, *small)
    assert done.returncode == 0, done.stderr
    assert processor.describe("AVX512_CORE_FP16") in done.stderr


def test_tests_run_and_say_so(machine: Machine) -> None:
    folder = ROOT / "tests"
    done = machine.run(
        "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(folder / "ops" / "test_gated.py")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert processor.describe("AVX512_CORE_FP16") in done.stdout


def test_what_the_user_set_stays(machine: Machine) -> None:
    done = machine.run("-m", "cosformer", "list", "attentions", ONEDNN_MAX_CPU_ISA="AVX2")
    assert set(machine.loaded_with()) <= {"AVX2"}  # it is not cured, and dies as it did
    assert done.stderr == ""


def test_the_next_setting_is_tried(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ("AVX512_CORE",))
    done = machine.run("-c", "from cosformer import processor; print(processor.prepare())")
    assert done.stdout.strip() == processor.describe("AVX512_CORE")
    assert machine.loaded_with() == ["nothing", "AVX512_CORE_FP16", "AVX512_CORE"]


def test_nothing_that_helps_is_said(tmp_path: Path) -> None:
    done = Machine(tmp_path, ()).run("-c", "from cosformer import processor; print(processor.prepare())")
    assert done.stdout.strip() == processor.describe(None) and "use float32" in done.stdout


def test_without_the_promise_nothing_is_tried(tmp_path: Path) -> None:
    machine = Machine(tmp_path, (), flags="fpu avx2 avx512f")
    done = machine.run("-c", "from cosformer import processor; print(processor.prepare())")
    assert done.stdout.strip() == "" and machine.loaded_with() == []


def test_a_permitted_amx_is_left_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path, (None,))
    done = machine.run(
        "-c", "import os; from cosformer import processor as p; print(p.prepare(), os.environ.get(p.VARIABLE))"
    )
    assert done.stdout.strip() == "None" and machine.loaded_with() == ["nothing"]


def test_importing_the_library_changes_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, (None,))
    code = (
        "import os; before = dict(os.environ); import cosformer; cosformer.cosformer_attention; assert before == "
        "dict(os.environ)"
    )
    done = machine.run("-c", code + "; from cosformer import processor; assert processor.prepare() == ''")
    assert done.returncode == 0, done.stderr


def test_the_probe_tells_a_process_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processor.probe(None)
    monkeypatch.setattr(processor, "PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert not processor.probe(None)
    cured = (
        f"import os, signal; os.environ.get({processor.VARIABLE!r}) == 'AVX512_CORE' or os.kill(os.getpid(), "
        "signal.SIGILL)"
    )
    monkeypatch.setattr(processor, "PROBE", cured)
    assert processor.find_setting() == "AVX512_CORE"
