"""Whether torch's bfloat16 products run on this processor, and the setting that makes them run.

Some virtual machines advertise AMX instructions (CPUID) that their system does not permit. oneDNN, which torch uses for
products of bfloat16 matrices, relies on CPUID, and the process dies ("Illegal instruction") in a plain ``x @ x``. An
environment variable that oneDNN reads when torch is loaded disables AMX. The commands and the tests set it if needed. A
library must not change its user's process, so ``cosformer check`` prints what to set. This module does not import
torch, because it must run first.
"""

import json
import os
import platform
import sys
from pathlib import Path

from cosformer.home import home

VARIABLE = "ONEDNN_MAX_CPU_ISA"
SETTINGS = ("AVX512_CORE_FP16", "AVX512_CORE")  # the fastest first
CPUINFO = Path("/proc/cpuinfo")
# products as a model has them: small and large, with a bias, in a batch, and their gradients
PROBE = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import torch
for n in (8, 64, 256):
    x = torch.ones(n, n, dtype=torch.bfloat16, requires_grad=True)
    y = (x @ x) + torch.nn.functional.linear(x, x, x[0]) + torch.bmm(x.expand(2, n, n), x.expand(2, n, n))[0]
    y.sum().backward()
    assert float(y[0, 0]) == torch.tensor(3 * n + 1).bfloat16() and bool(x.grad.isfinite().all())
"""


def name() -> str:
    """What the processor calls itself."""
    return _cpuinfo("model name") or platform.processor() or platform.machine() or "unknown"


def promises_amx() -> bool:
    return "amx_tile" in _cpuinfo("flags").split()


def probe(setting: str | None) -> bool:
    """Whether bfloat16 products run, in a process of their own, with VARIABLE set to ``setting`` (None: not set)."""
    import subprocess  # here, not above: every `--help` loads this module, and needs none of it

    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if setting is not None:
        environment[VARIABLE] = setting
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, check=False)
    return done.returncode == 0


def find_setting() -> str | None:
    """The value VARIABLE needs for bfloat16 products: empty if they run without it, None if nothing helps."""
    if probe(None):
        return ""
    return next((setting for setting in SETTINGS if probe(setting)), None)


def prepare() -> str:
    """Set VARIABLE where torch's bfloat16 products need it; to be called before torch is loaded. Returns a line that
    says so, or nothing.

    Only where the processor promises AMX is anything tried, once for each processor, system and version of torch. What
    the user has set stays.
    """
    if "torch" in sys.modules or VARIABLE in os.environ or not promises_amx():
        return ""
    from importlib import metadata

    try:
        setting = _kept_setting(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return ""
    if setting:
        os.environ[VARIABLE] = setting
    return describe(setting)


def describe(setting: str | None) -> str:
    """One line about the result of :func:`find_setting`; empty if bfloat16 works."""
    trouble = "torch's bfloat16 products do not run on this machine (it advertises AMX but does not permit it)"
    if setting is None:
        return f"{trouble}, whatever {VARIABLE} says: use float32"
    return f"{trouble}; {VARIABLE}={setting} was set, with which they do" if setting else ""


def _kept_setting(torch_version: str) -> str | None:
    key = [name(), _cpuinfo("microcode"), platform.release(), torch_version, sys.executable]
    path = home() / "bfloat16.json"
    try:
        kept = json.loads(path.read_text())
        if kept["key"] == key:
            return kept["setting"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or not ours: find out again
    setting = find_setting()
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps({"key": key, "setting": setting}))
        os.replace(fresh, path)  # several processes may do this at once
    except OSError:
        pass  # nothing can be kept here: the next command finds out again
    return setting


def _cpuinfo(field: str) -> str:
    return read_field(CPUINFO, field)


def read_field(path: Path, field: str) -> str:
    """The value after ``field:`` in a file such as /proc/cpuinfo; empty if it is missing."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    found = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in found if key.strip() == field), "")
