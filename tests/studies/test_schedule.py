"""The order in which a block runs: searches whose range grows, then seed by seed, and what is left out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cosformer.runs import Run, run_of_line
from report.made_up import run_line
from studies.cosformer2022 import cells, rates, schedule
from studies.cosformer2022.cells import Cell
from studies.cosformer2022.claims import PARITY

LEVELS = {"softmax": 1.5, "cosformer": 1.6, "uniform": 2.5}
GATES = {PARITY: {"name": "table", "score": 1.9}}


def result(cell: Cell, levels: dict[str, float]) -> Run:
    """A run whose loss is the attention's level; in a search the loss is least at 0.016."""
    loss = levels[cell.attention] + (cell.seed / 100 if cell.rate is None else abs(cell.rate - 0.016))
    more: dict[str, Any] = {} if cell.rate is None else {"rate": cell.rate}
    return run_of_line(run_line(cell.recipe, cell.attention, cell.seed, {"loss": loss}, 3.2, **more))


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Sequence[Cell]]]:
    """Runs a block of three attentions and five seeds with made-up trainings; returns what each round trained."""

    def run(levels: dict[str, float] = LEVELS, fails: str = "", known: Sequence[Run] = ()) -> list[Sequence[Cell]]:
        done: list[Run] = []
        trained: list[Sequence[Cell]] = []

        def train(todo: Sequence[Cell], runs: Path, **_: Any) -> list[Cell]:
            trained.append(todo)
            done.extend(result(cell, levels) for cell in todo if cell.attention != fails)
            return [cell for cell in todo if cell.attention == fails]

        def collect(wanted: Sequence[Cell], runs: Path) -> tuple[list[Run], list[str]]:
            return [run for run in done if len(schedule.without(wanted, [run])) < len(wanted)], []

        monkeypatch.setattr(cells, "BLOCKS", {"Z": {PARITY: dict.fromkeys(LEVELS, 5)}})
        monkeypatch.setattr(rates, "committed", list)
        monkeypatch.setattr(rates, "RATES", {})
        monkeypatch.setattr(schedule, "train", train)
        monkeypatch.setattr(schedule, "collect", collect)
        options: dict[str, Any] = {"wanted": lambda cell: True, "scored_too": True, "seconds": None, "say": print}
        schedule.work(["Z"], Path("runs"), known, GATES, **options)
        return trained

    return run


def told(one: Sequence[Cell]) -> list[tuple[str, int | float]]:
    return [(cell.attention, cell.rate or cell.seed) for cell in one]


def test_a_block_searches_until_the_best_rate_lies_inside_and_then_goes_seed_by_seed(rounds: Any) -> None:
    first, second, third, *scored = rounds()
    assert told(first) == [(name, rate) for name in LEVELS for rate in (0.002, 0.004, 0.008)]
    assert told(second) == [(name, 0.016) for name in LEVELS]
    assert told(third) == [(name, 0.032) for name in LEVELS], "at 0.016 the best lay at the end again"
    assert [told(one) for one in scored] == [[(name, seed) for name in LEVELS] for seed in range(5)]
    assert all(cell.experiment().train.lr == 0.016 for one in scored for cell in one)


def test_a_missed_gate_ends_a_block_after_the_first_seed(rounds: Any) -> None:
    scored = [told(one) for one in rounds(LEVELS | {"softmax": 2.0}) if one[0].rate is None]
    assert scored == [[(name, 0) for name in LEVELS]]


def test_a_control_that_keeps_up_ends_it_after_the_third(rounds: Any) -> None:
    scored = [told(one) for one in rounds(LEVELS | {"uniform": 1.5}) if one[0].rate is None]
    assert len(scored) == 3


def test_known_runs_are_not_run_again_and_what_failed_is_not_tried_for_ever(rounds: Any) -> None:
    known = [result(Cell(PARITY, name, seed), LEVELS) for name in LEVELS for seed in (0, 1)]
    scored = [told(one) for one in rounds(known=known) if one[0].rate is None]
    assert scored == [[(name, seed) for name in LEVELS] for seed in (2, 3, 4)]
    trained = [told(one) for one in rounds(fails="cosformer")]
    assert all(("cosformer", 0.002) not in one for one in trained[1:])
    assert trained[-1] == [("softmax", 4), ("uniform", 4)]
