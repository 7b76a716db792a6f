"""The paper's claims on time and memory, judged from the benchmarks' result files (protocol.md)."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cosformer.bench.tables import OUT_OF_MEMORY
from cosformer.report.measurements import Results, read_results
from studies.cosformer2022 import paper
from studies.cosformer2022.verdict import FAILS, HOLDS, NOT_RUN, UNDECIDED, Verdict, together

LARGEST_EXPONENT = 1.15
SHORTEST = 1024
ORDER_LENGTHS = (2000, 4000)


def speed_claims(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The ledger's entries from ``attention.json``, ``zoo.json``, ``text.json`` in ``folder``; what is missing."""
    found: dict[str, Results | None] = {}
    problems = []
    for name in ("attention", "zoo", "text"):
        path = folder / f"{name}.json"
        try:
            found[name] = read_results(path)
        except (OSError, ValueError) as error:
            found[name] = None
            problems.append(f"{path}: {error}")
    return [_linear_time(found["attention"]), _linear_memory(found["zoo"]), _order(found["text"])], problems


def exponent(by_length: Mapping[int, float]) -> float | None:
    """Growth of ``by_length`` from the shortest length >= 1,024 to the longest; None without two lengths."""
    points = sorted((n, value) for n, value in by_length.items() if n >= SHORTEST and value > 0)
    if len(points) < 2:
        return None
    (n_0, x_0), (n_1, x_1) = points[0], points[-1]
    return math.log(x_1 / x_0) / math.log(n_1 / n_0)


def _linear_time(results: Results | None) -> dict[str, Any]:
    verdicts, table = [], []
    for mode in ("causal", "non-causal"):
        measured = results.find(kind="forward", mode=mode, baseline="sdpa") if results else []
        times = {
            "cosformer": {m.length or 0: m.milliseconds or 0.0 for m in measured},
            "sdpa": {m.length or 0: m.baseline_milliseconds or 0.0 for m in measured},
        }
        verdicts.append(_judge(times["cosformer"], f"the operator's time, {mode}", exponent(times["sdpa"])))
        table += [_row(f"{name}, {mode}", found, "ms") for name, found in times.items()]
    test = "forward pass, 8 heads of 64 channels, against torch's softmax attention"
    return _linear("time", test, "cosformer bench attention --json docs/results/attention.json", verdicts, table)


def _linear_memory(results: Results | None) -> dict[str, Any]:
    verdicts, table = [], []
    for mode, name in (("causal", "causal"), ("plain", "non-causal")):
        measured = results.find(kind="memory", attention="cosformer", mode=mode) if results else []
        found = {m.length or 0: m.value for m in measured if m.value is not None}
        verdicts.append(_judge(found, f"peak memory above the inputs, {name}", None))
        table.append(_row(f"cosformer, {name}", found, "MB"))
    test = "peak memory of a forward pass in a fresh process, 8 heads of 64 channels"
    command = "cosformer bench attention --attentions cosformer --lengths 1024,2048,4096,8192"
    return _linear("memory", test, command, verdicts, table)


def _linear(what: str, test: str, command: str, verdicts: list[Verdict], rows: list[dict[str, Any]]) -> dict[str, Any]:
    entry = {"key": f"linear-{what}", "says": f"{what.capitalize()} grows linearly with the length"}
    entry |= {"where": "section 3, figure 2", "test": test, "command": command}
    return entry | vars(together(verdicts)) | {"unit": "exponent", "rows": rows}


def _judge(by_length: Mapping[int, float], what: str, softmax: float | None) -> Verdict:
    found = exponent(by_length)
    if found is None:
        return Verdict(NOT_RUN, f"{what}: not measured")
    beside = "" if softmax is None else f" (softmax: {softmax:.2f})"
    lengths = sorted(n for n in by_length if n >= SHORTEST)
    reason = f"{what} grows with exponent {found:.2f}{beside} from {lengths[0]:,} to {lengths[-1]:,} tokens"
    return Verdict(HOLDS if found <= LARGEST_EXPONENT else FAILS, reason)


def _row(name: str, by_length: Mapping[int, float], unit: str) -> dict[str, Any]:
    found = exponent(by_length)
    row: dict[str, Any] = {"attention": name, "unit": unit}
    if found is not None:
        row["mean"] = float(f"{found:.3g}")
        row["by_length"] = {str(n): by_length[n] for n in sorted(by_length) if n >= SHORTEST}
    return row


def _order(text: Results | None) -> dict[str, Any]:
    """cosFormer against every other attention of table 5, in inference and training."""
    contradicted, overlaps, pairs = [], 0, 0
    for kind, speeds in paper.TABLE5.items():
        for length in ORDER_LENGTHS:
            for name in speeds:
                ours, other = (_speed(text, kind, length, x) for x in ("cosformer", name))
                if name == "cosformer" or ours is None or other is None:
                    continue
                pairs += 1
                theirs, paper_ours = speeds[name][length], speeds["cosformer"][length]
                assert paper_ours is not None
                faster = _faster(ours, other)
                if faster is None:
                    overlaps += 1
                elif faster != (theirs is None or paper_ours > theirs):
                    contradicted.append(f"{name} is {'slower' if faster else 'faster'} at {length:,} in {kind}")
    entry = {
        "key": "speed-order",
        "says": "The order of speed in table 5",
        "where": "table 5",
        "test": "byte-level text classifier at 2,000 and 4,000 bytes, cosFormer against each other attention",
        "command": "python -m benchmarks text --json docs/results/text.json",
        "unit": "steps per second",
        "rows": [],
    }
    return entry | vars(order_verdict(contradicted, overlaps, pairs))


def order_verdict(contradicted: list[str], overlaps: int, pairs: int) -> Verdict:
    """No pair may contradict the paper, and at least half of them must be decided."""
    if not pairs:
        return Verdict(NOT_RUN, "no speeds of the text classifier")
    if contradicted:
        some = "; ".join(contradicted[:4]) + ("; …" if len(contradicted) > 4 else "")
        return Verdict(FAILS, f"{len(contradicted)} of {pairs} pairs come in the other order: than cosFormer, {some}")
    if 2 * overlaps > pairs:
        return Verdict(UNDECIDED, f"the quartiles of {overlaps} of {pairs} pairs overlap")
    return Verdict(HOLDS, f"{pairs - overlaps} of {pairs} pairs come in the paper's order, the others overlap")


def _speed(text: Results | None, mode: str, length: int, name: str) -> tuple[float, float] | None:
    """The quartiles of its speed, as a multiple of softmax's; zeros where it ran out of memory; None: not run."""
    place = {"mode": mode, "length": length, "attention": name}
    speed, memory = (text.one(kind=kind, **place) if text else None for kind in ("speed", "memory"))
    if speed is not None and speed.value is not None:
        return speed.low or speed.value, speed.high or speed.value
    return (0.0, 0.0) if memory is not None and memory.note.startswith(OUT_OF_MEMORY) else None


def _faster(ours: tuple[float, float], other: tuple[float, float]) -> bool | None:
    """Whether ours is the faster one; None where the quartiles overlap."""
    if ours[0] > other[1]:
        return True
    return False if other[0] > ours[1] else None
