"""What the Triton kernels need of a GPU, without one: compiles every configuration and reads the machine code.

    python -m tools.triton_resources                      every target, as a table
    python -m tools.triton_resources sm_90 --write FILE   one target, also into FILE as JSON

For each kernel, dtype and width: registers of a thread, instructions that spill a register to memory, bytes of shared
memory, and the matrix instruction found in the machine code. One configuration takes 1 to 10 seconds.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# bytes of shared memory that one program may have
SHARED_LIMIT = {"sm_80": 166_912, "sm_90": 232_448, "sm_100": 232_448, "gfx942": 65_536}
# most configurations of a target: more take too long to be looked at
MOST = 80


class Configuration(NamedTuple):
    kernel: str
    dtype: str  # of the tensors
    kind: str  # of the products, as in `plan.SIZES`
    width: int
    decay: bool = False

    @property
    def name(self) -> str:
        return f"{self.kernel}/{self.dtype}/{self.kind}/{self.width}{'/decay' if self.decay else ''}"


class Usage(NamedTuple):
    registers: int
    spills: int
    shared: int
    instructions: list[str]  # matrix instructions


def configurations() -> list[Configuration]:
    """Every kernel with products at every width and dtype; the others where they need most.

    With decays: bfloat16, whose products are those of float16 then, and exact float32.
    """
    kinds = [("bf16", "bf16"), ("fp16", "tf32"), ("fp32", "tf32"), ("fp32", "ieee")]
    products = ("segment_sums", "attend_rows", "query_gradients", "key_gradients")
    widths = {"bf16": (64, 128, 256), "tf32": (64, 128, 256), "ieee": (64, 128)}
    found = [Configuration(kernel, *kind, width) for kernel in products for kind in kinds for width in widths[kind[1]]]
    found += [Configuration("running_sums", dtype, "", 128) for dtype in ("bf16", "fp32")]
    for kernel in ("row_gradients", "one_step"):
        found += [Configuration(kernel, "bf16", "", width) for width in (64, 128, 256)]
        found.append(Configuration(kernel, "fp32", "", 256))
    kinds = [("bf16", "tf32"), ("fp32", "ieee")]
    found += [
        Configuration(kernel, *kind, width, True) for kernel in products for kind in kinds for width in widths[kind[1]]
    ]
    found += [Configuration("running_sums", "fp32", "", 128, True), Configuration("one_step", "bf16", "", 256, True)]
    assert len(found) <= MOST
    return found


def _constants(c: Configuration) -> tuple[dict[str, Any], dict[str, int]]:
    """The compile-time arguments of a causal call with angles, D = E = width, and the options of its launch."""
    import triton.language as tl

    from cosformer.ops.triton.plan import COMPILER, DECAY_COLUMNS, SCAN_BLOCK, SIZES, STEP_BLOCK

    w = c.width
    known: dict[str, Any] = {"H": 16, "HK": 16, "GROUPS": 1, "D": w, "E": w, "F": 2 * w, "FE": 2 * w * w, "BD": w}
    known |= {"BE": w, "BM": 32, "RELU": True, "ANGLES": True, "PAIRS": True, "CAUSAL": True, "ROWS": True}
    known |= {"HAS_MASK": True, "HAS_FIRST": True, "REVERSE": False, "NORMALISER": "clamp", "BLOCK": SCAN_BLOCK}
    known |= {"DECAY": c.decay}
    known |= {"DOT": tl.bfloat16 if c.kind == "bf16" else tl.float32}
    known |= {"PRECISION": "tf32" if c.kind == "tf32" else "ieee"}
    options = {"num_warps": 4}
    if c.kernel in SIZES:
        sizes = SIZES[c.kernel][c.kind, w]
        options = {"num_warps": sizes.warps, "num_stages": sizes.stages}
        columns = DECAY_COLUMNS if c.decay else sizes.columns
        known |= {"BT": sizes.rows, "BM": sizes.rows, "BN": columns, "BE": sizes.block, "BX": sizes.block}
        if c.kernel == "query_gradients":
            known |= {"BD": sizes.block, "BE": w}
        if c.kernel == "key_gradients":
            known |= {"BM": columns, "BN": sizes.rows}
    if c.kernel == "one_step":
        known["BE"] = STEP_BLOCK
    return known, options | COMPILER


def compile_for(c: Configuration, target: str) -> Any:
    """A kernel compiled for a target that need not be here."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from cosformer.ops.triton import kernels

    function = getattr(kernels, c.kernel)
    known, options = _constants(c)
    tables = {"MASK": "u8", "TABLE": "fp32", "RATES": "fp32", "SEGMENTS": "i32", "TILES": "i32"}
    tables |= dict.fromkeys(("SUMS", "SCALE", "BETA", "Z", "Z0", "Z1", "KV0", "KV1", "DEN"), "fp32")
    tables["KV"] = "bf16" if "bf16" in (c.kind, c.dtype) and not c.decay else "fp32"
    signature, attributes, constants = {}, {}, {}
    for i, name in enumerate(function.arg_names):
        if name in known:
            signature[name], constants[(i,)] = "constexpr", known[name]
        elif name.isupper() or name in tables:
            signature[name], attributes[(i,)] = f"*{tables.get(name, c.dtype)}", [["tt.divisibility", 16]]
        elif name == "eps" or name.endswith(("cos", "sin")):
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if re.fullmatch(r"s\w_[bhn]", name):
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    amd = target.startswith("gfx")
    gpu = GPUTarget("hip", target, 64) if amd else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    return triton.compile(source, target=gpu, options=options)


def usage(compiled: Any, target: str) -> Usage:
    """Read from the machine code."""
    shared = compiled.metadata.shared
    if target.startswith("gfx"):
        text = compiled.asm["amdgcn"]
        registers, spills = (
            int(re.findall(rf"\.{name}:\s+(\d+)", text)[0]) for name in ("vgpr_count", "vgpr_spill_count")
        )
        return Usage(registers, spills, shared, sorted(set(re.findall(r"v_mfma_\w+", text))))
    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        summary, code = (
            subprocess.run([tools / command, option, file.name], capture_output=True, text=True, check=True).stdout
            for command, option in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    registers = int(re.findall(r"REG:(\d+)", summary)[0])
    matrix = set(re.findall(r"\b((?:HMMA|HGMMA|UTCHMMA)[.\w]*)", code))
    return Usage(registers, len(re.findall(r"\bSTL\b", code)), shared, sorted(matrix))


def measure(targets: list[str], only: str = "") -> Iterator[tuple[str, Configuration, Usage]]:
    for target in targets:
        for c in configurations():
            if target.startswith("gfx") and c.kind not in ("bf16", ""):
                continue  # AMD has no tf32; there float16 and float32 take exact products, which nobody has looked at
            if only in c.name:
                yield target, c, usage(compile_for(c, target), target)


def markdown(path: Path) -> str:
    """A table of results that were written earlier: configurations down, targets across."""
    known: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        f"| kernel | dtype | product | channels | decay | {' | '.join(known)} |",
        f"|---|---|---|---:|---|{'---|' * len(known)}",
    ]
    for c in configurations():
        cells = [_cell(known[target].get(c.name)) for target in known]
        lines.append(
            f"| `{c.kernel}` | {c.dtype} | {c.kind} | {c.width} | {'yes' if c.decay else ''} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not compiled"
    matrix = ", ".join(sorted({name.split(".")[0] for name in found["instructions"]}))
    return f"{found['registers']} / {found['spills']} / {found['shared']:,} {matrix}".strip()


def main(arguments: list[str] | None = None) -> int:
    """Print the table, write it where asked, and fail where a kernel would not start for want of shared memory."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.triton_resources", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("targets", nargs="*", default=list(SHARED_LIMIT), help=f"of {', '.join(SHARED_LIMIT)}")
    parser.add_argument("--only", default="", help="configurations with this in their name")
    parser.add_argument("--write", type=Path, help="JSON file that takes up the results")
    options = parser.parse_args(arguments)
    if unknown := set(options.targets) - set(SHARED_LIMIT):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; known: {', '.join(SHARED_LIMIT)}")
    known = json.loads(options.write.read_text()) if options.write and options.write.exists() else {}
    too_much = 0
    for target, c, found in measure(options.targets, options.only):
        over = found.shared > SHARED_LIMIT[target]
        too_much += over
        print(
            f"{target:7}{c.name:40}{found.registers:5} registers {found.spills:4} spills {found.shared:8,} shared"
            f"{' (over the limit)' if over else ''}  {' '.join(found.instructions)}",
            flush=True,
        )
        known.setdefault(target, {})[c.name] = found._asdict()
        if options.write:
            options.write.write_text(json.dumps(known, indent=1) + "\n")
    return 1 if too_much else 0


if __name__ == "__main__":
    sys.exit(main())
