"""``cosformer bench long``: a training step against the length, whole, in windows, and on two processes."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cosformer import terminal
from cosformer.bench.measure import in_fresh_process, measured, peak_above_now, seconds
from cosformer.bench.steps import language_model, random_bytes, training_step
from cosformer.bench.tables import crossed, length
from cosformer.extras import require
from cosformer.report.measurements import Measurement, Results
from cosformer.report.table import Table
from cosformer.runs import NOT_RUN

QUICK = {"lengths": (1024, 4096), "window": 1024, "softmax_up_to": 1024, "repeats": 1}
LAYERS, WIDTH, HEADS = 2, 128, 4
_WARM = 256  # tokens of the step before the first: libraries that load then do not count
# attention and how the sequence is worked on
FORMS = (("cosformer", "windows"), ("cosformer", "two processes"), ("cosformer", "whole"), ("softmax", "whole"))


def measurements(
    *,
    lengths: Sequence[int] = (16_384, 65_536, 262_144, 1_048_576),
    window: int = 16_384,
    whole_up_to: int = 262_144,
    softmax_up_to: int = 65_536,
    memory_only: bool = False,
    repeats: int = 3,
    threads: int = 2,
) -> Iterator[Measurement]:
    require("hf", "transformers")
    most = {("softmax", "whole"): softmax_up_to, ("cosformer", "whole"): whole_up_to}
    most[("cosformer", "two processes")] = 2 * whole_up_to
    for n in lengths:
        for attention, mode in FORMS:
            place = {"attention": attention, "mode": mode, "length": n}
            speed = Measurement(kind="speed", **place, unit="tokens a second", better="higher")
            memory = Measurement(kind="memory", **place, unit="MB", better="lower")
            if n > most.get((attention, mode), n):
                note = f"left out above {most[attention, mode]:,} tokens"
                yield from (replace(m, note=note) for m in ((memory,) if memory_only else (speed, memory)))
                continue
            terminal.status(f"{attention}, {mode}, {n:,} tokens ...")
            options = {"attention": attention, "mode": mode, "n": n, "window": window}
            options["repeats"] = 0 if memory_only else repeats
            times, peak = in_fresh_process("cosformer.bench.long:step", threads, **options)
            if not memory_only:
                yield measured(speed, [n / each for each in times])
            yield measured(memory, [peak / 1e6])


def step(attention: str, mode: str, n: int, window: int, repeats: int) -> tuple[list[float], int]:
    """Runs in a fresh process: the seconds of each step, and the bytes at the peak of one, model, ids and gradients
    included.

    Of two processes, the larger peak.
    """
    if mode != "two processes":
        return _timed(lambda size: _train_step(attention, size, window if mode == "windows" else None), n, repeats)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, attention, n, repeats, max(1, torch.get_num_threads() // 2))
        torch.multiprocessing.start_processes(_rank, arguments, nprocs=2, start_method="spawn")
        found = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]
    return found[0][0], max(peak for _, peak in found)


def _rank(rank: int, folder: str, attention: str, n: int, repeats: int, threads: int) -> None:
    import torch.distributed as dist

    torch.set_num_threads(threads)
    place = f"file://{os.path.join(folder, 'rendezvous')}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    found = _timed(lambda size: _train_step(attention, size, None, dist.group.WORLD), n, repeats)
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def _timed(make: Callable[[int], Callable[[], None]], n: int, repeats: int) -> tuple[list[float], int]:
    make(_WARM)()
    kept: list[Callable[[], None]] = []

    def first() -> None:
        kept.append(make(n))
        kept[0]()

    peak = peak_above_now(first)
    return [seconds(kept[0]) for _ in range(repeats)], peak


def _train_step(attention: str, n: int, window: int | None, group: Any = None) -> Callable[[], None]:
    """Forward, loss, backward and Adam on one sequence of ``n`` random bytes, or on this rank's half of it."""
    import torch.distributed as dist

    from cosformer.models.windows import backward_in_windows

    sizes: dict[str, Any] = {"width": WIDTH, "layers": LAYERS, "heads": HEADS}
    model = language_model(attention, n, **sizes, position_embedding_type="sinusoidal")
    batch = random_bytes(1, n)
    if window is not None:
        return training_step(model, batch, lambda: backward_in_windows(model, batch, window=window))
    if group is None:
        return training_step(model, batch)
    batch = {name: ids.chunk(2, dim=1)[dist.get_rank()] for name, ids in batch.items()}

    def backward() -> None:
        model(**batch, sequence_group=group).loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)

    return training_step(model, batch, backward)


def tables(results: Results) -> list[Table]:
    """Lengths down, ways to train across: memory, then speed."""
    titles = {
        "memory": "Peak memory of a training step in MB, model, ids, gradients and Adam included (of two processes, "
        "the larger).",
        "speed": "Tokens a second of a training step (median and quartiles).",
    }
    shown = [m for m in results.measurements if m.value is not None]
    return [
        crossed(
            title,
            [m for m in shown if m.kind == kind],
            length,
            lambda m: f"{m.attention}, {m.mode}",
            "tokens",
            NOT_RUN,
        )
        for kind, title in titles.items()
    ]
