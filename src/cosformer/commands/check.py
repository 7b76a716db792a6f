"""``cosformer check``: what is installed, what ``auto`` takes, and whether every form is exact on this machine."""

import argparse
import json
import os
import platform
import re
import sys
from functools import partial
from importlib import metadata
from itertools import groupby
from typing import Any

from cosformer import processor, terminal
from cosformer._version import __version__

DTYPES = ("float32", "float64")
SEND_US = (
    "We had no GPU to run this on. Please send us, in an issue, what this prints with --json, and the file that\n"
    "`cosformer bench attention --device cuda --json gpu.json` writes."
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="where to run the forms: cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    device = usable_device(args.device)
    from cosformer.bench import exactness

    terminal.status("measuring every form against the definition ...")
    findings = list(exactness.measure(device))
    terminal.status("")
    report = {
        "versions": versions(),
        "extras": extras(),
        "processor": about_processor(),
        "device": device,
        "backends": backends(device),
        "auto": auto_choices(device),
        "exactness": [finding.as_dict() for finding in findings],
        "passed": all(finding.passed for finding in findings),
    }
    print(json.dumps(report, indent=2) if args.json else _text(report))
    return 0 if report["passed"] else 1


def usable_device(name: str) -> str:
    """``name``, if tensors can be made there."""
    import torch

    try:
        torch.ones(1, device=name).add(1).cpu()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used here ({reason}); try --device cpu") from None
    return name


def versions() -> dict[str, str]:
    """Of Python, this package and what it always needs."""
    import numpy
    import torch

    return {
        "python": platform.python_version(),
        "cosformer": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def extras() -> dict[str, dict[str, Any]]:
    """Each optional extra: the packages of it that are missing, and the line that brings them."""
    try:
        about = metadata.metadata("cosformer")
    except metadata.PackageNotFoundError:
        return {}  # run from its sources, without being installed
    wanted: dict[str, list[str]] = {name: [] for name in about.get_all("Provides-Extra") or []}
    for line in about.get_all("Requires-Dist") or []:
        match = re.fullmatch(r"([\w.-]+)(\[[\w,-]*\])?.*;.*extra == ['\"](\w+)['\"].*", line)
        if match:
            package, parts, extra = match.groups()
            wanted[extra] += (
                [f"+{part}" for part in parts.strip("[]").split(",")] if package == "cosformer" else [package]
            )
    return {
        name: {"missing": _missing(wanted, name), "install": f"pip install 'cosformer[{name}]'"}
        for name in sorted(wanted)
    }


def _missing(wanted: dict[str, list[str]], extra: str) -> list[str]:
    missing = []
    for package in wanted[extra]:
        if package.startswith("+"):  # another extra of ours
            missing += _missing(wanted, package[1:])
        else:
            try:
                metadata.version(package)
            except metadata.PackageNotFoundError:
                missing.append(package)
    return sorted(set(missing))


def about_processor() -> dict[str, Any]:
    """The processor, which build of the kernels runs on it and how, and whether torch's bfloat16 products do."""
    import torch

    from cosformer.ops.native.library import INSTRUCTION_SET, find

    library, reason = find()
    terminal.status("trying torch's bfloat16 products in a process of their own ...")
    return {
        "name": processor.name(),
        "torch_uses": torch.backends.cpu.get_cpu_capability(),
        "kernels": library.instructions if library else reason,
        "instruction_sets": list(library.instruction_sets) if library else [],
        "chosen_by": INSTRUCTION_SET if os.environ.get(INSTRUCTION_SET) else "processor",
        "compiler": library.compiler if library else None,
        "threads": torch.get_num_threads(),
        "thread_pool": library.pool if library else None,
        "bfloat16": about_bfloat16(),
    }


def about_bfloat16() -> dict[str, Any]:
    """Whether a process that sets nothing can multiply bfloat16 matrices with torch, and what it must set if not."""
    setting = processor.find_setting()
    if setting == "":
        return {"works": True, "set": None, "advice": ""}
    if setting is None:
        return {"works": False, "set": None, "advice": "use float32: no setting of oneDNN that we know helps"}
    line = f"{processor.VARIABLE}={setting}"
    advice = (
        f"set {line} in the environment of your own programs, before torch is loaded; our commands set it themselves"
    )
    return {"works": False, "set": line, "advice": advice}


def backends(device: str) -> dict[str, dict[str, Any]]:
    """What each backend is, and for each dtype why it does not run here (an empty string: it does)."""
    import torch

    from cosformer.ops import native
    from cosformer.ops.backends import BACKENDS, why_not

    found: dict[str, dict[str, Any]] = {}
    for name, about in BACKENDS.items():
        examples = {dtype: torch.empty(0, dtype=getattr(torch, dtype), device=device) for dtype in DTYPES}
        found[name] = {"about": about, "why_not": {dtype: why_not(name, x) for dtype, x in examples.items()}}
    found["native"]["about"] += f" ({native.describe()})" if native.available() else ""
    return found


def auto_choices(device: str, longest: int = 4096) -> dict[str, list[dict[str, Any]]]:
    """For each dtype what ``backend="auto"`` takes for N = S from 1 to ``longest``, as spans of lengths."""
    import torch

    from cosformer.ops.dispatch import choose

    def chosen(dtype: str, n: int) -> str:
        x = torch.empty(1, dtype=getattr(torch, dtype), device=device).expand(1, 8, n, 64)
        return choose(x, x, x, None)

    spans: dict[str, list[dict[str, Any]]] = {}
    for dtype in DTYPES:
        groups = [(name, [*lengths]) for name, lengths in groupby(range(1, longest + 1), partial(chosen, dtype))]
        spans[dtype] = [{"backend": name, "from": lengths[0], "to": lengths[-1]} for name, lengths in groups]
        spans[dtype][-1]["to"] = None
    return spans


def _text(report: dict[str, Any]) -> str:
    lines = ["  ".join(f"{name} {version}" for name, version in report["versions"].items()), "", "Extras"]
    for name, extra in report["extras"].items():
        lack = f"{', '.join(extra['missing'])} not installed: {extra['install']}"
        lines.append(f"  {name:8} {lack if extra['missing'] else 'installed'}")
    if not report["extras"]:
        lines.append("  cosformer runs from its sources; install it to use extras: pip install .")
    lines += ["", "Processor", *_processor_lines(report["processor"])]
    lines += ["", f"Backends on {report['device']}"]
    for name, backend in report["backends"].items():
        lines.append(f"  {name:8} {backend['about']}")
        reasons = dict.fromkeys(reason for reason in backend["why_not"].values() if reason)
        lines += [f"           {reason}" for reason in reasons]
    lines += ["", "Forms chosen by backend='auto' (N = S)"]
    for dtype, spans in report["auto"].items():
        lines.append(f"  {dtype:8} {', '.join(map(_span, spans))}")
    lines += [
        "  one token with a state: the one-token step",
        "",
        "Exactness against the definition (largest error, relative)",
        "",
    ]
    lines += [exactness_table(report["exactness"]), "", verdict(report["exactness"])]
    if report["device"].startswith("cuda"):
        lines += ["", SEND_US]
    return "\n".join(lines)


def _processor_lines(about: dict[str, Any]) -> list[str]:
    from cosformer.ops.native.library import INSTRUCTION_SET, INSTRUCTION_SETS

    lines = [f"  {about['name']}; torch uses {about['torch_uses']}"]
    if about["compiler"]:
        chosen = f"{INSTRUCTION_SET} is set" if about["chosen_by"] == INSTRUCTION_SET else "the widest"
        lines.append(
            f"  native kernels for {', '.join(about['instruction_sets'])} run here; in use: {about['kernels']} "
            f"({chosen})"
        )
        lines.append(f"           {INSTRUCTION_SET}={'|'.join(INSTRUCTION_SETS)} chooses another build")
        lines.append(f"  built with {about['compiler']}; {about['threads']} threads: {about['thread_pool']}")
    else:
        lines.append(f"  {about['kernels']}")
    bfloat16 = about["bfloat16"]
    if bfloat16["works"]:
        return [*lines, "  torch's bfloat16 products work"]
    return [*lines, terminal.paint(f"  torch's bfloat16 products DO NOT WORK; {bfloat16['advice']}", "red")]


def _span(span: dict[str, Any]) -> str:
    if span["to"] is None:
        return f"{span['backend']} from {span['from']:,} tokens on"
    return f"{span['backend']} from {span['from']:,} to {span['to']:,}"


def exactness_table(findings: list[dict[str, Any]]) -> str:
    """One line per form and backend, the dtypes side by side."""
    cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for finding in findings:
        cells.setdefault((finding["form"], finding["backend"]), {})[finding["dtype"]] = finding
    rows = []
    for (form, backend), by_dtype in cells.items():
        row = [form, backend]
        for dtype in ("float64", "float32"):
            found = by_dtype.get(dtype)
            row += [f"{found[part]:.0e}" if found else "-" for part in ("output", "gradient")]
        row.append("ok" if all(found["passed"] for found in by_dtype.values()) else "FAILED")
        rows.append(row)
    header = ["form", "backend", "f64 output", "gradient", "f32 output", "gradient", ""]
    return terminal.table(header, rows)


def verdict(findings: list[dict[str, Any]]) -> str:
    """One sentence that says whether every form is exact, and by which limit."""
    limits = ", ".join(f"{limit:.0e} in {dtype}" for dtype, limit in {f["dtype"]: f["limit"] for f in findings}.items())
    failed = [f for f in findings if not f["passed"]]
    if failed:
        names = ", ".join(f"{f['form']} ({f['backend']}, {f['dtype']})" for f in failed)
        return terminal.paint(
            f"{len(failed)} of {len(findings)} measurements exceed their limit ({limits}): {names}", "red"
        )
    return terminal.paint(f"All {len(findings)} measurements are within their limit ({limits}).", "green", sys.stdout)
