"""What the ledger still has to run, block by block: searches first, then the scored runs, a seed at a time."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cosformer.runs import Run
from studies.cosformer2022 import rates
from studies.cosformer2022.blocks import AFTER, SEEDS
from studies.cosformer2022.cells import Cell, ledger_cells, search_cells
from studies.cosformer2022.ledger import Gates, needed
from studies.cosformer2022.loop import train
from studies.cosformer2022.state import cell_key, collect, merged


def search_lines(runs: Path, block: str | None = None) -> list[Run]:
    """The lines of the search of rates, the committed ones and those in the folder ``runs``; they count from now on."""
    lines = rates.committed()
    while here := collect(without(search_cells(lines, block), lines), runs)[0]:
        lines = merged(lines, here)  # they may show that a range must grow
    rates.learn(lines)
    return lines


def missing(
    block: str, runs: Path, known: Sequence[Run], gates: Gates, wanted: Callable[[Cell], bool]
) -> tuple[list[Cell], list[Cell]]:
    """Of a block the searches and the scored runs that are neither in ``known`` nor in the folder ``runs`` and that can
    still change a verdict. ``wanted``: only these, of the scored ones."""
    searched = search_lines(runs, block)
    cells = [cell for cell in ledger_cells(SEEDS, block) if wanted(cell)]
    lines = merged(known, collect(without(cells, known), runs)[0])
    scored = [x for x in without(cells, lines) if needed(x.recipe, x.attention, x.seed, lines, gates)]
    starts = {(x.start, x.attention, x.seed) for x in scored}
    scored = [x for x in scored if x.recipe not in AFTER or (x.recipe, x.attention, x.seed) in starts]
    sought = {(rates.SAME_AS.get(x.recipe, x.recipe), x.attention) for x in scored}
    left = without(search_cells(searched, block), searched)
    return [x for x in left if (x.recipe, x.attention) in sought], scored


def without(cells: Iterable[Cell], lines: Iterable[Run]) -> list[Cell]:
    """The cells that have no line."""
    done = {cell_key(run) for run in lines}
    return [cell for cell in cells if (cell.recipe, cell.attention, cell.seed, cell.rate or 0.0) not in done]


def work(
    blocks: Iterable[str],
    runs: Path,
    known: Sequence[Run],
    gates: Gates,
    *,
    wanted: Callable[[Cell], bool],
    scored_too: bool,
    seconds: float | None,
    say: Callable[[str], None],
    **options: Any,
) -> list[Cell]:
    """Train what is missing of ``blocks``, round by round, as each round says what the next one needs.

    Returns the cells that failed or for which ``seconds`` did not suffice. ``scored_too``: not the searches alone.
    ``options``: of ``loop.train``.
    """
    end = None if seconds is None else time.monotonic() + seconds
    left: list[Cell] = []
    for block in blocks:
        while True:
            searches, scored = missing(block, runs, known, gates, wanted)
            ready = [x for x in scored if scored_too and x not in left and not rates.waits(x.recipe, x.attention)]
            seed = min((cell.seed for cell in ready), default=None)
            todo = [x for x in searches if x not in left] + [x for x in ready if x.seed == seed]
            if not todo:
                break
            firsts = [cell.before for cell in todo if cell.before is not None and cell.before not in todo]
            say(f"Block {block}: {len(searches)} searches and {len(scored)} scored runs are missing.")
            rest = None if end is None else max(0.0, end - time.monotonic())
            left += train([*dict.fromkeys(firsts), *todo], runs, seconds=rest, say=say, **options)
            if end is not None and time.monotonic() >= end:
                return left
    return left
