"""``python -m benchmarks text``: the paper's table 5 and figure 1, speed and memory on byte-level text classification.

Speed: times the Transformer's steps per second. Memory: peak MB above the model itself. Order: Spearman's rank
correlation of our speeds with the paper's.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from cosformer import terminal
from cosformer.bench.measure import compared, in_fresh_process, measured
from cosformer.bench.steps import allowed_bytes, inference_step, peak, timed, training_step
from cosformer.bench.tables import NO_SUCH_FORM, OUT_OF_MEMORY, lengths_of
from cosformer.bench.zoo import names
from cosformer.extras import require
from cosformer.report.measurements import Measurement, Results, number
from cosformer.report.table import Table
from cosformer.runs import NOT_RUN
from studies.cosformer2022 import paper

CROSS = "×"
QUICK = {"lengths": (250, 500), "repeats": 3}
MODES = {"inference": inference_step, "training": training_step}
BASELINE = "softmax"
PAPER_ATTENTIONS = tuple(paper.TABLE5["training"])
_WARM = 64
_BUDGET = 30.0  # seconds of one length's repeats, once there are three


def measurements(
    *,
    attentions: str = ",".join(PAPER_ATTENTIONS),
    lengths: Sequence[int] = (1000, 2000, 3000, 4000),
    batch: int = 2,
    width: int = 256,
    repeats: int = 5,
    threads: int = 2,
    memory_limit: float | None = None,
    device: str = "cpu",
) -> Iterator[Measurement]:
    require("hf", "transformers")
    chosen = names(attentions)
    sizes: dict[str, Any] = {"batch": batch, "width": width, "memory": allowed_bytes(memory_limit), "device": device}
    found = []
    for m in memory_at(chosen, lengths, threads=threads, **sizes):
        found.append(m)
        yield m
    crossed = {(m.length, m.attention) for m in found if m.value is None}
    speeds: list[Measurement] = []
    for n in lengths:
        fitting = [name for name in chosen if (n, name) not in crossed]
        speeds += speed_at(n, fitting, repeats=repeats, **sizes)
        yield from (m for m in speeds if m.length == n)
    for mode in MODES:
        for n in lengths:
            yield from order_at(mode, n, speeds)


def memory_at(
    chosen: Sequence[str],
    lengths: Sequence[int],
    *,
    batch: int,
    width: int,
    memory: int,
    threads: int,
    device: str = "cpu",
) -> Iterator[Measurement]:
    """Peaks of each attention, measured in a fresh process."""
    terminal.status(f"memory of {', '.join(chosen)} ...")
    sizes: dict[str, Any] = {"batch": batch, "width": width, "memory": memory, "device": device}
    given = {"names": list(chosen), "lengths": list(lengths), **sizes}
    try:
        found = in_fresh_process("benchmarks.text:peaks", threads, **given)
    except RuntimeError as error:
        if len(chosen) > 1:  # find out which it was
            for name in chosen:
                yield from memory_at([name], lengths, threads=threads, **sizes)
            return
        found = [(chosen[0], mode, n, f"not run: {error}") for n in lengths for mode in MODES]
    for name, mode, n, size in found:
        m = Measurement(kind="memory", attention=name, mode=mode, length=n, unit="MB", better="lower")
        yield replace(m, note=size) if isinstance(size, str) else measured(m, [size / 1e6])


def peaks(
    names: list[str], lengths: list[int], batch: int, width: int, memory: int, device: str
) -> list[tuple[str, str, int, int | str]]:
    """Runs in a fresh process: (attention, mode, length, peak bytes above the model, or why there are none)."""
    found = []
    for name in names:
        for kind in MODES.values():
            kind(*text_model(name, _WARM, batch, width, device))()  # libraries that load at the first call do not count
        for n in lengths:
            for mode, kind in MODES.items():
                found.append((name, mode, n, peak(kind(*text_model(name, n, batch, width, device)), memory, device)))
    return found


def speed_at(
    n: int, chosen: Sequence[str], *, batch: int, width: int, memory: int, repeats: int, device: str = "cpu"
) -> Iterator[Measurement]:
    """Both modes at length ``n``; the attentions take turns."""
    for mode, kind in MODES.items():
        builds = {
            name: lambda name=name, kind=kind: kind(*text_model(name, n, batch, width, device)) for name in chosen
        }
        times, notes = timed(builds, memory, device, repeats=repeats, budget=_BUDGET)
        for name in chosen:
            place: dict[str, Any] = {"attention": name, "mode": mode, "length": n, "baseline": BASELINE}
            m = Measurement(kind="speed", **place, unit="times the Transformer", better="higher", note=notes[name])
            yield compared(m, times[name], times.get(BASELINE)) if name in times else m


def order_at(mode: str, n: int, speeds: Sequence[Measurement]) -> Iterator[Measurement]:
    """How well our order of speeds agrees with the paper's at length ``n``, where both have at least three."""
    theirs = {name: of_length.get(n) for name, of_length in paper.TABLE5[mode].items()}
    pairs = [
        (1 / m.milliseconds, speed)
        for m in speeds
        if (m.mode, m.length) == (mode, n) and m.milliseconds and (speed := theirs.get(m.attention)) is not None
    ]
    if len(pairs) < 3:
        return
    found = round(statistics.correlation(*map(_ranks, zip(*pairs, strict=True))), 3)
    m = Measurement(kind="order", mode=mode, length=n, unit="rank correlation", better="higher", value=found)
    yield replace(m, baseline="the paper's order", variant=f"{len(pairs)} attentions")


def _ranks(values: Sequence[float]) -> list[int]:
    ordered = sorted(values)
    return [ordered.index(value) for value in values]


def text_model(name: str, n: int, batch: int, width: int, device: str = "cpu") -> tuple[Any, dict[str, Any]]:
    """The text model with attention ``name`` and random bytes of full length."""
    from cosformer.models.classification import CosformerForSequenceClassification
    from cosformer.models.presets import lra_text

    torch.manual_seed(0)
    sizes = {"hidden_size": width, "head_dim": width // 4, "intermediate_size": 4 * width}
    sizes |= {"classifier_sizes": [4 * width]}
    config = lra_text(attention=name, max_position_embeddings=n + 1, hidden_dropout_prob=0.0, **sizes)
    ids, labels = torch.randint(1, 257, (batch, n)), torch.randint(0, 2, (batch,))
    model = torch.nn.Module.to(CosformerForSequenceClassification(config), device)
    return model, {"input_ids": ids.to(device), "labels": labels.to(device)}


def tables(results: Results) -> list[Table]:
    """For each mode our multiples beside the paper's, then steps per second and memory; at the end the orders."""
    memory = {(m.mode, m.length, m.attention): m for m in results.find(kind="memory")}
    speeds = {(m.mode, m.length, m.attention): m for m in results.find(kind="speed")}
    lengths = lengths_of(memory.values())
    names = sorted(dict.fromkeys(m.attention for m in memory.values()), key=lambda name: name != "softmax")
    made = []
    for mode in ("inference", "training"):
        compared, absolute = [], []
        for name in names:
            cells = [(n, speeds.get((mode, n, name)), memory[mode, n, name]) for n in lengths]
            label = paper.NAMES.get(name, name)
            compared.append([label, *(x for n, s, m in cells for x in (_ours(s, m), _papers(mode, name, n)))])
            rates = [
                number(1e3 / s.milliseconds) if s is not None and s.milliseconds else _missing(m) for _, s, m in cells
            ]
            absolute.append([label, *rates, *(_missing(m) if m.value is None else number(m.value) for *_, m in cells)])
        title = (
            f"{mode.capitalize()}, steps per second as multiples of the Transformer's: ours "
            f"({results.settings['batch']} sequences, width {results.settings['width']}, softmax fused by torch) and "
            f"the paper's (one A6000; {CROSS}: out of memory, -: the Transformer is)."
        )
        made.append(Table(title, ["", *(f"{n:,} {whose}" for n in lengths for whose in ("ours", "paper"))], compared))
        title = f"{mode.capitalize()}: steps per second, and peak memory above the model itself."
        header = ["", *(f"steps/s at {n:,}" for n in lengths), *(f"MB at {n:,}" for n in lengths)]
        made.append(Table(title, header, absolute))
    orders = [[f"{m.mode}, {m.length:,} bytes, {m.variant}", f"{m.value:.2f}"] for m in results.find(kind="order")]
    return [*made, Table("Agreement with the paper's order of speeds (1: the same order).", ["", "Spearman"], orders)]


def _ours(speed: Measurement | None, memory: Measurement) -> str:
    if speed is None or not speed.milliseconds:
        return _missing(memory)
    return NO_SUCH_FORM if speed.value is None else f"{speed.value:.2f}"


def _papers(mode: str, name: str, n: int) -> str:
    speeds, softmax = paper.TABLE5[mode].get(name, {}), paper.TABLE5[mode]["softmax"].get(n)
    if n not in speeds:
        return ""
    speed = speeds[n]
    if speed is None:
        return CROSS
    return NO_SUCH_FORM if softmax is None else f"{speed / softmax:.2f}"


def _missing(memory: Measurement) -> str:
    return CROSS if memory.note.startswith(OUT_OF_MEMORY) else NOT_RUN
