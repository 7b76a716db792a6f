"""Mutants of the kernels: every mask, selection and bound removed or changed, one at a time, against a short contract.

    python -m mutations triton                       every mutant of the Triton kernels
    python -m mutations triton --every 10            a sample: each tenth
    python -m mutations triton --only key_gradients  those of one function

Each mutant lives in a copy of the tree in a temporary folder. One that the contract does not notice survives: it is
printed with its place and written to tests/mutations.json, where a reason can be put beside it; reasons stay when it is
run again. One that runs into the time limit counts as noticed, and is counted apart.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "mutations.json"
SECONDS = 20.0  # that the contract may take on a quiet machine


class Target(NamedTuple):
    files: tuple[str, ...]  # below the root
    patterns: tuple[tuple[str, str, str], ...]  # (what is done, pattern, replacement), as `re.sub` takes them
    contract: tuple[str, ...]  # arguments of pytest


# balanced brackets to a depth of three, for the operands of a call
_INNER = r"(?:[^(),\[\]]|\[[^\[\]]*\]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))+"
# the Python of the kernels: Triton, and the plain forms
_PYTHON = (
    ("the other branch of where", rf"\bwhere\(({_INNER}), ({_INNER}), ({_INNER})\)", r"where(\1, \3, \2)"),
    ("where left out", rf"(?:tl|torch|jnp)\.where\(({_INNER}), ({_INNER}), ({_INNER})\)", r"(\2)"),
    ("a bound that is one more", r" (?<![-=])< (?!0\b)", r" <= "),
    ("a bound that is one less", r" <= ", r" < "),
    ("a diagonal left out", r" >= (?!0\b)", r" > "),
    ("a diagonal too many", r" > (?!0\b)", r" >= "),
    ("one condition of two", r"(\([^()]*\)|\b[\w.]+(?:\[[^\]]*\])?) & ", r""),
    ("maximum left out", rf"tl\.maximum\(({_INNER}), ({_INNER})\)", r"(\1)"),
    ("minimum left out", rf"tl\.minimum\(({_INNER}), ({_INNER})\)", r"(\1)"),
    ("a clamp left out", rf"\.clamp_m(?:in|ax)\({_INNER}\)", r""),
)
_TRITON = (
    *_PYTHON,
    ("a mask of a load left out", rf", mask={_INNER}, other={_INNER}(?=\))", r""),
    ("a key mask left out", rf"_visible\({_INNER}, {_INNER}, ({_INNER}), HAS_MASK\)", r"(\1)"),
)
_C = (
    ("a bound that is one more", r" < (?!0\b)", r" <= "),
    ("a bound that is one less", r" <= ", r" < "),
    ("a diagonal left out", r" >= (?!0\b)", r" > "),
    ("a diagonal too many", r" > (?!0\b)", r" >= "),
    ("one condition of two", r"\b[\w.>-]+ && ", r""),
    ("the other branch", r" \? ([^:?;]+) : ([^:?;,)]+)", r" ? \2 : \1"),
)
# To add a kernel, add a line: its files, what is changed in them, and a contract of at most 20 seconds.
TARGETS = {
    "triton": Target(
        ("src/cosformer/ops/triton/kernels.py",),
        _TRITON,
        ("tests/ops/triton/test_contract.py", "tests/ops/triton/test_decay.py", "-k", "combination or select or step"),
    ),
    "native": Target(
        tuple(str(path.relative_to(ROOT)) for path in sorted((ROOT / "src/cosformer/ops/native").glob("*.h"))),
        _C,
        ("tests/ops/test_native.py",),
    ),
}


class Mutant(NamedTuple):
    file: str
    function: str
    line: int  # from 1
    what: str
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.function}: {self.what}: {self.before.strip()} -> {self.after.strip()}"


def mutants(target: Target) -> Iterator[Mutant]:
    """One for each place of each pattern; comments and docstrings are left alone."""
    for file in target.files:
        function, quoted = "", False
        for number, line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1):
            if found := re.match(r"(?:def|static [\w ]+?\**) ?(\w+)\(", line):
                function = found[1]
            if line.count('"""') == 1:
                quoted = not quoted
            if quoted or '"""' in line or line.lstrip().startswith(("#", "//", "*", "/*", "assert")):
                continue
            for what, pattern, replacement in target.patterns:
                for found in re.finditer(pattern, line):
                    after = line[: found.start()] + found.expand(replacement) + line[found.end() :]
                    if after != line:
                        yield Mutant(file, function, number, what, line, after)


def copy_tree(folder: Path) -> None:
    """What the contract needs; the compiled kernels come along, and are built again where C was changed."""
    for name in ("src", "tests", "tools", "pyproject.toml", "setup.py"):
        place = ROOT / name
        if place.is_dir():
            shutil.copytree(place, folder / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        else:
            shutil.copy2(place, folder / name)


def run(folder: Path, contract: tuple[str, ...], seconds: float) -> str:
    """``killed``, ``too slow`` or ``survived``."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *contract]
    paths = os.pathsep.join(str(folder / name) for name in ("src", ".", "tests"))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "too slow"
    if done.returncode > 1:  # neither passed nor failed: the contract itself could not be run
        raise RuntimeError(done.stdout + done.stderr)
    return "killed" if done.returncode else "survived"


def build(folder: Path) -> bool:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def main() -> int:
    """Run the mutants of one target; 1 where one survives without a reason."""
    parser = argparse.ArgumentParser(prog="python -m mutations", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--every", type=int, default=1, help="take each n-th mutant only")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--count", type=int, help="take at most so many")
    parser.add_argument("--only", default="", help="those with this in their name")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit of a mutant; more on a busy machine")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()
    target = TARGETS[options.target]
    chosen = [m for m in mutants(target) if options.only in m.name][options.first :: options.every][: options.count]
    if options.list:
        print(*(f"{m.line:4} {m.name}" for m in chosen), sep="\n")
        return 0
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    record = known.setdefault(options.target, {"tried": {}, "reasons": {}})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tree"
        folder.mkdir()
        copy_tree(folder)
        if run(folder, target.contract, 10 * options.seconds) != "survived":
            raise SystemExit("the contract fails without a mutation")
        for number, mutant in enumerate(chosen, 1):
            place = folder / mutant.file
            source = place.read_text(encoding="utf-8")
            lines = source.splitlines()
            lines[mutant.line - 1] = mutant.after
            place.write_text("\n".join(lines) + "\n", encoding="utf-8")
            c = mutant.file.endswith((".h", ".c"))
            found = run(folder, target.contract, options.seconds) if not c or build(folder) else "not built"
            place.write_text(source, encoding="utf-8")
            record["tried"][mutant.name] = found
            print(f"{number}/{len(chosen)} {found}: line {mutant.line}: {mutant.name}", flush=True)
            RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    survivors = [m for m in chosen if record["tried"][m.name] == "survived"]
    unexplained = [m.name for m in survivors if m.name not in record["reasons"]]
    print(f"{len(chosen)} mutants, {len(survivors)} survived, {len(unexplained)} of them without a reason")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
