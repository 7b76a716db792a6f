"""``make test-arm``: the kernels compiled for 64-bit ARM, run under qemu, against an oracle of their own.

Needs Debian's gcc-aarch64-linux-gnu and qemu-user; says so and ends with 0 where they are missing.
"""

import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.oracle import Array, Given, Oracle

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "src" / "cosformer" / "ops" / "native"
GCC, EMULATOR, OBJDUMP = "aarch64-linux-gnu-gcc", "qemu-aarch64", "aarch64-linux-gnu-objdump"
CLANG = ("clang", "--target=aarch64-linux-gnu")  # the compiler of macOS, where the kernels were not run
FORWARD, DENSE, STEP = range(3)
CASES, SEED = 300, 0
FLOAT32 = 1e-6  # of the magnitude: sums, states, and results before they are rounded
HALF_ULP = 2.0**-8  # of a bfloat16 number, relative to it


@dataclass
class Case:
    kind: int
    half: bool
    sizes: tuple[int, ...]  # B, H, Hk, N, S, D, E
    before: int  # keys ahead of the new ones, which the state holds
    causal: bool
    mask: bool
    cuts: list[int]  # of packed sequences, or empty
    q_first: int
    max_len: int
    eps: float
    threads: int


def draw(rng: np.random.Generator) -> Case:
    def pick(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    kind = pick(FORWARD, FORWARD, FORWARD, DENSE, STEP)
    b, hk, groups, d, e = (
        pick(1, 2),
        pick(1, 2, 3),
        pick(1, 2),
        pick(1, 5, 16, 20, 32, 64, 65),
        pick(1, 7, 16, 40, 64, 72),
    )
    n = 1 if kind == STEP else pick(1, 5, 16, 47, 48, 64, 90) if kind == DENSE else pick(1, 16, 49, 97, 150, 200)
    causal = kind == STEP or pick(True, False)
    s = n if causal else pick(n, 1, 33, 90)
    if causal and kind == FORWARD:
        s = n + pick(0, 0, 7, 60)
    before = pick(0, 3, 50) if kind != DENSE else 0
    packed = kind == FORWARD and s == n and not before and pick(True, False)
    if packed:
        b = 1
    cuts = [0, *sorted(int(x) for x in rng.integers(0, n + 1, size=3)), n] if packed else []
    q_first = before + s - n if causal else pick(0, 4)
    longest = max(before + s, q_first + n)
    return Case(
        kind, pick(True, False), (b, hk * groups, hk, n, s, d, e), before, causal, not packed and pick(True, False),
        cuts, 0 if packed else q_first, longest + pick(0, 1, 100), pick(1e-6, 1e-3, 1.0), pick(1, 2, 3),
    )  # fmt: skip


def rounded(x: Array, half: bool) -> Array:
    """The nearest numbers of the dtype."""
    single = np.ascontiguousarray(x, dtype=np.float32)
    if not half:
        return single.astype(np.float64)
    bits = single.view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def packed_bytes(x: Array, half: bool) -> bytes:
    single = np.ascontiguousarray(x, dtype=np.float32)
    return (single.view(np.uint32) >> 16).astype(np.uint16).tobytes() if half else single.tobytes()


class Problem:
    """The numbers of a case, what the driver reads, and what must come back."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self.case = case
        b, h, hk, n, s, d, e = case.sizes
        total, past = case.before + s, case.before
        self.q = rounded(rng.standard_normal((b, h, n, d)), case.half)
        self.k = rounded(rng.standard_normal((b, hk, total, d)), case.half)
        self.v = rounded(rng.standard_normal((b, hk, total, e)), case.half)
        self.kept = np.ones((b, total), dtype=bool)
        if case.mask:
            self.kept[:, past:] = rng.random((b, s)) > 0.3
        i, j = np.arange(n) + case.q_first, np.arange(total)
        visible = j[None, :] <= i[:, None] if case.causal else np.ones((n, total), dtype=bool)
        if case.cuts:
            sequence = np.searchsorted(case.cuts[1:], j, side="right")
            visible = visible & (sequence[:, None] == sequence[None, :])
            i = j = j - np.array(case.cuts)[sequence]
        turn = np.pi / 2 / case.max_len
        visible = np.broadcast_to(visible, (b, n, total)) & self.kept[:, None, :]
        self.oracle = Oracle(Given(self.q, self.k, self.v, i * turn, j * turn, visible, self.kept, case.eps))
        weight = rng.standard_normal((b, h, n, e))
        weight[self.oracle.close_to_eps()] = 0
        self.weight = rounded(weight, case.half)
        old = Given(
            self.q[:, :, :0], self.k[:, :, :past], self.v[:, :, :past], i[:0] * turn, j[:past] * turn,
            visible[:, :0, :past], self.kept[:, :past], case.eps,
        )  # fmt: skip
        self.state = {name: value for name, (value, _) in Oracle(old).state().items()}
        self.turn = turn

    def encode(self) -> bytes:
        case = self.case
        b, h, hk, n, s, d, e = case.sizes
        past = case.before
        sequences = max(len(case.cuts) - 1, 1)
        header = struct.pack(
            "19qd", case.kind, b, h, hk, n, s, d, e, case.half, case.causal, case.max_len, case.max_len, case.q_first,
            past, sequences, case.threads, past > 0, case.mask, bool(case.cuts), case.eps,
        )  # fmt: skip
        parts = [packed_bytes(x, case.half) for x in (self.q, self.k[:, :, past:], self.v[:, :, past:])]
        if past:
            parts += [packed_bytes(self.state[name], False) for name in ("kv", "z")]
        if case.mask:
            parts.append(self.kept[:, past:].astype(np.uint8).tobytes())
        if case.cuts:
            parts.append(np.array(case.cuts, dtype=np.int64).tobytes())
        return header + b"".join(parts) + packed_bytes(self.weight, case.half)

    def results(self) -> list[tuple[str, tuple[int, ...], bool]]:
        """Name, shape and whether it is bfloat16, in the order in which the driver writes."""
        b, h, hk, n, s, d, e = self.case.sizes
        half = self.case.half
        state = [("kv", (b, hk, 2 * d, e), False), ("z", (b, hk, 2 * d), False)]
        found = [("out", (b, h, n, e), half)]
        if self.case.kind != DENSE:
            found += state
        if self.case.kind == FORWARD:
            found += [("dq", (b, h, n, d), half), ("dk", (b, hk, s, d), half), ("dv", (b, hk, s, e), half)]
            found += [("d" + name, shape, False) for name, shape, _ in state]
        return found

    def compare(self, got: dict[str, Array]) -> dict[str, float]:
        """Errors in units of what is allowed."""
        wanted = {"out": self.oracle.output(), **self.oracle.state()}
        past = self.case.before
        if self.case.kind == FORWARD:
            gradients = self.oracle.gradients(self.weight, None, None)
            wanted["dq"] = gradients["dq"]
            wanted |= {name: tuple(x[:, :, past:] for x in gradients[name]) for name in ("dk", "dv")}
            if past:  # gradients of the state are right if those of the keys that made it follow from them
                got |= self._through_state(got.pop("dkv"), got.pop("dz"))
                wanted |= {f"old {name}": tuple(x[:, :, :past] for x in gradients[name]) for name in ("dk", "dv")}
        errors = {}
        for name, value in got.items():
            if (name in ("kv", "z") and self.case.cuts) or name not in wanted:
                # packed sequences have no state; without an old one there is nothing to follow from its gradient
                continue
            want, size = wanted[name]
            rounding = HALF_ULP * np.abs(want) if self.case.half and name in ("out", "dq", "dk", "dv") else 0
            if not np.isfinite(value).all():
                errors[name] = np.inf
            elif value.size:
                allowed = FLOAT32 * size + rounding + 1e-35
                errors[name] = float(np.max(np.abs(value - want) / allowed))
        return errors

    def _through_state(self, dkv: Array, dz: Array) -> dict[str, Array]:
        past = self.case.before
        k, v = self.k[:, :, :past], self.v[:, :, :past]
        angle = np.arange(past)[:, None] * self.turn
        by_feature = v @ dkv.swapaxes(-1, -2) + dz[..., None, :]
        d = k.shape[-1]
        dk = (by_feature[..., :d] * np.cos(angle) + by_feature[..., d:] * np.sin(angle)) * (k > 0)
        fk = np.maximum(k, 0)
        return {"old dk": dk, "old dv": np.concatenate([fk * np.cos(angle), fk * np.sin(angle)], -1) @ dkv}


def build(compiler: tuple[str, ...], folder: Path) -> Path:
    """The driver with the kernels, compiled as setup.py does, every warning an error."""
    flags = ["-std=gnu11", "-O3", "-falign-loops=64", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
    flags += ["-Wall", "-Wextra", "-Werror", "-Wno-psabi", f"-I{NATIVE}", "-static"]
    sources = [str(path) for path in [*sorted(NATIVE.glob("*.c")), Path(__file__).with_name("driver.c")]]
    binary = folder / "driver"
    subprocess.run([*compiler, *flags, "-o", str(binary), *sources, "-lm", "-ldl", "-lpthread"], check=True)
    return binary


def count_instructions(binary: Path) -> dict[str, int]:
    """How often the code multiplies and adds four numbers at once (NEON), and one alone."""
    code = subprocess.run([OBJDUMP, "-d", str(binary)], check=True, capture_output=True, text=True).stdout.splitlines()
    vectors = sum("\tfmla\t" in line and ".4s" in line for line in code)
    return {"fmla of four floats": vectors, "fmadd of one": sum("\tfmadd\t" in line for line in code)}


def main() -> int:
    if missing := [tool for tool in (GCC, EMULATOR, OBJDUMP) if not shutil.which(tool)]:
        print(f"test-arm skipped: {', '.join(missing)} not found; apt-get install gcc-aarch64-linux-gnu qemu-user")
        return 0
    problems = []
    for number in range(CASES):
        rng = np.random.default_rng([SEED, number])
        problems.append(Problem(draw(rng), rng))
    failed = run((GCC,), problems)
    if shutil.which(CLANG[0]):
        return run(CLANG, problems) or failed
    print("no clang here: its build for ARM was not tried")
    return failed


def run(compiler: tuple[str, ...], problems: list[Problem]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        binary = build(compiler, Path(folder))
        counts = count_instructions(binary)
        words = [EMULATOR, str(binary)]
        done = subprocess.run(words, input=b"".join(p.encode() for p in problems), capture_output=True, check=True)
    print(done.stderr.decode().strip() + "; " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return report(problems, done.stdout) or int(counts["fmla of four floats"] < 100)


def report(problems: list[Problem], output: bytes) -> int:
    at, failed, worst = 0, 0, {True: {}, False: {}}
    for number, problem in enumerate(problems):
        got = {}
        for name, shape, half in problem.results():
            count = int(np.prod(shape))
            if half:
                raw = np.frombuffer(output, np.uint16, count, at).astype(np.uint32) << 16
                value = raw.view(np.float32)
            else:
                value = np.frombuffer(output, np.float32, count, at)
            got[name] = value.astype(np.float64).reshape(shape)
            at += count * (2 if half else 4)
        errors = problem.compare(got)
        if not all(error <= 1 for error in errors.values()):
            failed += 1
            print(f"FAILED case {number}: {errors} times what is allowed to {problem.case}")
        for name, error in errors.items():
            worst[problem.case.half][name] = max(error, worst[problem.case.half].get(name, 0.0))
    assert at == len(output), "the driver wrote something else"
    for half, found in worst.items():
        text = ", ".join(f"{name} {error:.2f}" for name, error in sorted(found.items()))
        limit = f"{FLOAT32:.0e} of the magnitude" + (" and half a unit in the last place" if half else "")
        print(f"{'bfloat16' if half else 'float32'}: worst errors in units of {limit}: {text}")
    print(f"{len(problems)} cases on {EMULATOR}, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
