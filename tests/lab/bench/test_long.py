"""``cosformer bench long``: what it yields, and that pieces bound the memory of a step over a million tokens."""

import pytest

from cosformer.lab.bench import long
from cosformer.lab.bench.measure import in_fresh_process


def test_every_form_is_measured_up_to_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fake(function: str, threads: int, **options: object) -> tuple[list[float], int]:
        calls.append((options["attention"], options["mode"], options["n"]))
        return [0.5] * int(str(options["repeats"])), 3_000_000

    monkeypatch.setattr(long, "in_fresh_process", fake)
    found = list(long.measurements(lengths=(100, 400), whole_up_to=100, softmax_up_to=50, repeats=2))
    assert calls == [
        ("cosformer", "pieces", 100),
        ("cosformer", "two processes", 100),
        ("cosformer", "whole", 100),
        ("cosformer", "pieces", 400),
    ]
    speed, memory = found[:2]
    assert (speed.value, speed.unit, memory.value, memory.unit) == (200, "tokens a second", 3, "MB")
    assert {m.note for m in found if m.value is None} == {f"left out above {n} tokens" for n in (50, 100, 200)}
    assert {m.kind for m in long.measurements(lengths=(100,), memory_only=True)} == {"memory"}


def test_a_step_in_pieces_is_measured() -> None:
    (seconds,), peak = long.step("cosformer", "pieces", 600, 200, 1)
    assert seconds > 0 and peak > 0


@pytest.mark.slow
def test_pieces_bound_the_memory_of_a_million_tokens() -> None:
    """From 64K to 1M a step may grow by what it must keep: ids and their shifted copy, and the states between pieces."""
    short, million = 65_536, 1_048_576
    peaks = {}
    for n in (short, million):
        options = {"attention": "cosformer", "mode": "pieces", "n": n, "piece": 16_384, "repeats": 0}
        _, peaks[n] = in_fresh_process("cosformer.lab.bench.long:step", 1, **options)
    head = long.WIDTH // long.HEADS
    states = long.LAYERS * long.HEADS * 2 * head * (head + 1) * 4 * (million - short) // 16_384
    ids = 8 * (million - short)
    assert peaks[million] < 16e9
    assert (
        peaks[million] - peaks[short] < 4 * ids + states + 64e6
    )  # ids, targets, what counts them; the allocator's slack
