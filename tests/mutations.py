"""Mutants of the kernels: every mask, selection and bound removed or changed, one at a time, against a short contract.

    python -m mutations triton                       every mutant of the Triton kernels
    python -m mutations plain --every 10             a sample: each tenth
    python -m mutations native --only triangle       those of one function

Each mutant runs in a fork of this process, which has all else loaded and the definition of every call of the contract
computed. What becomes of each goes to a log, from which a run that was stopped goes on; delete it to begin anew. A
mutant that the contract does not notice survives: it is listed in tests/mutants.jsonl, where a reason can be put beside
it; reasons stay when it is run again. One that runs into the time limit counts as noticed, and is counted apart.
"""

import argparse
import functools
import importlib.util
import inspect
import itertools
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
MUTATED_BUILD = "avx2" if "avx2" in Path("/proc/cpuinfo").read_text() else "generic"
NOT_BUILT = 9
RESULTS = ROOT / "tests" / "mutants.jsonl"
SECONDS = 20  # of a processor that a contract may take; a mutant is given twice that


class Target(NamedTuple):
    files: tuple[str, ...]  # below the root
    patterns: tuple[tuple[str, str, str], ...]  # (what is done, pattern, replacement), as `re.sub` takes them
    tests: tuple[str, ...] = ()  # of tests/ops/test_contract.py: its contract
    arguments: tuple[str, ...] = ()  # of pytest, where the contract needs it


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
    ("a mask of a store left out", rf", mask={_INNER}(?=\)$)", r""),
    ("a key mask left out", rf"_visible\({_INNER}, {_INNER}, ({_INNER}), HAS_MASK\)", r"(\1)"),
)
_PLAIN = (
    *_PYTHON,
    ("a fill left out", rf"\.masked_fill_?\({_INNER}, {_INNER}\)", r""),
    ("the other fill", rf"\.masked_fill(_?)\((?!~)({_INNER}), ({_INNER})\)", r".masked_fill\1(~(\2), \3)"),
    ("the other fill", rf"\.masked_fill(_?)\(~({_INNER}), ({_INNER})\)", r".masked_fill\1(\2, \3)"),
    ("the triangle left out", r"\.tril_\(\)", r""),
    ("the other equality", r" != ", r" == "),
    ("the other inequality", r" == ", r" != "),
    ("the other condition", r" if (?!not)([^:]+?) else ", r" if not (\1) else "),
    ("the other condition", r"^(\s*)if ([^:]+):$", r"\1if not (\2):"),
    ("one condition of two", r"[\w.]+(?: is (?:not )?None| (?:[<>]=?|[=!]=) [\w.]+)? and ", r""),
    ("one condition of two", r" and [^:]+?(?=:?$| else )", r""),
    ("one condition of two", r"[\w.]+(?: is (?:not )?None)? or ", r""),
    ("one bound of two", rf"\bm(?:in|ax)\(({_INNER}), ({_INNER})\)", r"(\1)"),
    ("the other bound of two", rf"\bm(?:in|ax)\(({_INNER}), ({_INNER})\)", r"(\2)"),
    ("one more", r" - 1\b", r""),
    ("one less", r" \+ 1\b", r""),
    ("from the first", r"\[1:\]", r"[:]"),
    ("to the last", r"\[:-1\]", r"[:]"),
    ("the other direction", r"\.flip\(\d\)", r""),
)
_C = (
    ("a bound that is one more", r" < (?!0\b)", r" <= "),
    ("a bound that is one less", r" <= ", r" < "),
    ("a diagonal left out", r" >= (?!0\b)", r" > "),
    ("a diagonal too many", r" > (?!0\b)", r" >= "),
    ("one condition of two", r"!?\b[\w.>-]+(?:\[\w+\])? (?:&&|\|\|) ", r""),
    ("the other of two conditions", r" (?:&&|\|\|) !?[\w.>-]+(?:\[\w+\])?(?=[);]| &&| \|\|| \?)", r""),
    ("the other branch", r" \? ([^:?;]+) : ([^:?;,)]+)", r" ? \2 : \1"),
    ("the other equality", r" (==|!=) ", lambda found: " != " if found[1] == "==" else " == "),
    ("a selection left out", rf"\bkeep\(({_INNER}), ({_INNER})\)", r"(\2)"),
    ("one bound of two", rf"\b(?:least|most)\(({_INNER}), ({_INNER})\)", r"(\1)"),
    ("the other bound of two", rf"\b(?:least|most)\(({_INNER}), ({_INNER})\)", r"(\2)"),
)
_NATIVE = ROOT / "src/cosformer/ops/native"
# To add a kernel, add a line: its files, what is changed in them, and a contract of at most 20 seconds.
TARGETS = {
    "triton": Target(
        ("src/cosformer/ops/triton/kernels.py",),
        _TRITON,
        arguments=(
            "tests/ops/triton/test_contract.py",
            "tests/ops/triton/test_decay.py",
            "-k",
            "combination or select or step or normalisers",
        ),
    ),
    "plain": Target(
        tuple(f"src/cosformer/ops/plain/{name}.py" for name in ("stack", "segment", "__init__")),
        _PLAIN,
        ("test_plain", "test_plain_with_other_normalisers", "test_plain_in_low_precision"),
    ),
    "native": Target(
        tuple(str(path.relative_to(ROOT)) for path in sorted(_NATIVE.glob("*.h")) if "cosformer" not in path.name),
        _C,
        (
            "test_native",
            "test_native_with_other_normalisers",
            "test_native_by_widths_and_dtypes",
            "test_one_step",
            "test_the_dense_form_in_c",
        ),
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
        function, quoted, seen = "", False, set()
        for number, line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1):
            if found := re.match(r"\s*(?:def|(?:static|INLINE) [\w ]+?\**) ?(\w+)\(", line):
                function = found[1]
            if line.count('"""') == 1:
                quoted = not quoted
            if quoted or '"""' in line or line.lstrip().startswith(("#", "//", "*", "/*", "assert", "def ", "raise ")):
                continue
            code = re.split(r"\s+#" if file.endswith(".py") else r"\s*/[/*]", line)[0]
            for what, pattern, replacement in target.patterns:
                for found in re.finditer(pattern, code):
                    new = replacement(found) if callable(replacement) else found.expand(replacement)
                    after = code[: found.start()] + new + code[found.end() :]
                    if after != code and (number, after) not in seen:
                        seen.add((number, after))
                        yield Mutant(file, function, number, what, code, after)


def load_mutant(mutant: Mutant, text: str, folder: Path) -> bool:
    """Put it in place of what is loaded, or is yet to be; False where it cannot be built."""
    path = Path(mutant.file)
    if path.suffix == ".h":
        return load_library(build_library(folder, path.name, text))
    (folder / path.name).write_text(text, encoding="utf-8")
    name = ".".join(path.parts[1:]).removesuffix(".py").removesuffix(".__init__")
    found = importlib.util.spec_from_file_location(
        name,
        folder / path.name,
        submodule_search_locations=[str(ROOT / path.parent)] if "__init__" in path.name else None,
    )

    class Finder:
        @staticmethod
        def find_spec(wanted: str, *_: object) -> object:
            return found if wanted == name else None

    sys.meta_path.insert(0, Finder)  # pyright: ignore
    for file in TARGETS["plain"].files:
        module = ".".join(Path(file).parts[1:]).removesuffix(".py").removesuffix(".__init__")
        if module in sys.modules:
            importlib.reload(sys.modules[module])
    return True


def build_library(folder: Path, header: str = "", text: str = "") -> Path | None:
    """The C kernels with another text of a header, for one instruction set; the other objects are made once."""
    native, build = ROOT / "src/cosformer/ops/native", MUTATED_BUILD
    include = ["-iquote", str(folder)]
    if header:
        # what includes a header looks beside itself first, so that all of them lie here
        for path in (*native.glob("*.h"), native / f"{build}.c"):
            (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / header).write_text(text, encoding="utf-8")
    for path in sorted(native.glob("*.c")):
        made = folder / f"{path.stem}.o"
        if not made.exists() or path.stem == build:
            source = folder / path.name if header and path.stem == build else path
            flags = ["-std=gnu11", "-O1", "-g0", "-fPIC", "-fvisibility=hidden", "-w"]
            if subprocess.run(["gcc", *flags, *include, "-c", source, "-o", made], capture_output=True).returncode:
                return None
    library = folder / f"kernels-{time.monotonic_ns()}.so"
    subprocess.run(["gcc", "-shared", *folder.glob("*.o"), "-o", library, "-lm", "-ldl", "-lpthread"], check=True)
    return library


def load_library(path: Path | None) -> bool:
    import torch

    from cosformer.ops.native import library

    if path is None:
        return False
    torch.set_num_threads(2)  # so that the tasks of a call are shared out
    os.environ |= {"COSFORMER_KERNELS": str(path), library.INSTRUCTION_SET: MUTATED_BUILD}
    library.find.cache_clear()
    library.loaded.cache_clear()
    library.loaded()
    return True


def calls(tests: tuple[str, ...]) -> list[Callable[[], None]]:
    """Tests of tests/ops/test_contract.py with each of their parameters, in an order that tries unlike ones early."""
    import torch

    from ops import test_contract

    def in_nan(x: Any) -> Any:
        around = torch.full((x.numel() + 2048,), math.nan, dtype=x.dtype)
        return around[1024 : 1024 + x.numel()].view(x.shape).copy_(x)

    made: list[Callable[[], None]] = []
    for test in (getattr(test_contract, name) for name in tests):
        marks = [mark.args for mark in test.pytestmark if mark.name == "parametrize"]
        for values in itertools.product(*(mark[1] for mark in marks)):
            options: dict[str, Any] = {}
            for (names, _), value in zip(marks, values, strict=True):
                options |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
            fixtures = {"in_nan": in_nan, "short_chunks": None}
            wanted = inspect.signature(test).parameters
            options |= {name: value for name, value in fixtures.items() if name in wanted}
            made.append(functools.partial(test, **options))
    random.Random(0).shuffle(made)
    return made


def run_contract(target: Target) -> int:
    """0 where nothing fails."""
    import torch

    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    if target.arguments:
        import pytest

        plugins = [word for name in ("cacheprovider", "xdist", "cov") for word in ("-p", f"no:{name}")]
        return int(pytest.main(["-x", "--tb=no", *plugins, "-m", "not slow", *target.arguments]))
    from cosformer.ops import plain

    plain.CHUNK, plain.CPU_SEGMENT, plain.CPU_ROWS = 16, 64, 128  # as `short_chunks`
    for call in calls(target.tests):
        torch.manual_seed(0)
        call()
    return 0


def in_fork(work: Callable[[], int], seconds: int, output: Path) -> str:
    """``killed``, ``too slow`` or ``survived``."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (2 * seconds, 2 * seconds + 1))
            with output.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            code = work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    deadline = time.monotonic() + 50 * seconds  # of a clock: for one that waits for ever, on a busy machine
    ended = status = 0
    while not ended:
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.02)
        ended, status = os.waitpid(pid, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status)
    if code == NOT_BUILT:
        return "not built"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "too slow"
    return "killed" if code else "survived"


def preload(target: Target) -> None:
    """What every fork needs and no mutant changes; of the other targets also what the contract expects."""
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    if target.arguments:
        import triton.runtime.interpreter  # noqa: F401
    else:
        run_contract(target)


def commit() -> str:
    words = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_results(target: str, tried: list[dict[str, Any]], mutants: int) -> int:
    """Counts and survivors of the target, which has so many mutants; how many survivors have no reason yet."""
    known = read(RESULTS)
    reasons = {line["mutant"]: line["reason"] for line in known if line.get("reason")}
    survivors = [line | {"reason": reasons.get(line["mutant"], "")} for line in tried if line["found"] == "survived"]
    counts = Counter(line["found"] for line in tried)
    commits = sorted({line["commit"] for line in tried})
    lines = [line for line in known if line["target"] != target]
    head = {"target": target, "mutants": mutants, "tried": len(tried)}
    lines.append(head | dict(sorted(counts.items())) | {"commits": commits})
    lines += [{name: line[name] for name in ("target", "line", "mutant", "reason")} for line in survivors]
    RESULTS.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return sum(not line["reason"] for line in survivors)


def main() -> int:
    """Run the mutants of one target; 1 where one survives without a reason."""
    parser = argparse.ArgumentParser(prog="python -m mutations", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--every", type=int, default=1, help="take each n-th mutant only")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--count", type=int, help="take at most so many")
    parser.add_argument("--only", default="", help="those with this in their name")
    parser.add_argument(
        "--seconds", type=int, default=SECONDS, help="of a processor that the contract takes (default: %(default)s)"
    )
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "mutants.jsonl", help="where it goes on from")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()
    target = TARGETS[options.target]
    every = list(mutants(target))
    chosen = [m for m in every if options.only in m.name][options.first :: options.every][: options.count]
    if options.list:
        print(*(f"{m.line:4} {m.name}" for m in chosen), sep="\n")
        return 0
    options.log.parent.mkdir(exist_ok=True)
    known = {(m.line, m.name) for m in every}  # what the log says of other lines is of sources that were changed since
    tried = {(line["line"], line["mutant"]): line for line in read(options.log) if line["target"] == options.target}
    tried = {key: line for key, line in tried.items() if key in known}
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / name) for name in ("src", ".", "tests")]
    preload(target)
    at = commit()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def outcome(mutant: Mutant, text: str) -> str:
            def work() -> int:
                return run_contract(target) if load_mutant(mutant, text, folder) else NOT_BUILT

            return in_fork(work, options.seconds, folder / "output.txt")

        sources = {name: (ROOT / name).read_text(encoding="utf-8") for name in target.files}
        if options.target == "native":
            build_library(folder)  # the objects that all mutants share
        # a source as it is must pass where its mutants are to fail
        if outcome(chosen[0], sources[chosen[0].file]) != "survived":
            raise SystemExit("the contract fails without a mutation:\n" + (folder / "output.txt").read_text())
        for number, mutant in enumerate(chosen, 1):
            if (mutant.line, mutant.name) in tried:
                continue
            lines = sources[mutant.file].splitlines()
            lines[mutant.line - 1] = mutant.after
            found = outcome(mutant, "\n".join(lines) + "\n")
            for path in folder.glob("kernels-*.so"):
                path.unlink()
            line = {"target": options.target, "line": mutant.line, "mutant": mutant.name, "found": found, "commit": at}
            tried[mutant.line, mutant.name] = line
            with options.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line, ensure_ascii=False) + "\n")
            print(f"{number}/{len(chosen)} {found}: line {mutant.line}: {mutant.name}", flush=True)
            write_results(options.target, list(tried.values()), len(every))
    unexplained = write_results(options.target, list(tried.values()), len(every))
    print(f"{len(tried)} of {len(every)} mutants tried, {unexplained} survivors without a reason")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
