"""Table 5 and figure 1: speed and memory of the byte-level text classifier, and both against the score."""

from collections.abc import Sequence
from typing import Any

from cosformer.lab.paper.cells import lra_recipes
from cosformer.lab.paper.request import Request
from cosformer.lab.records import NOT_RUN, Measurement, Results, Run, read_results
from cosformer.lab.render.bench_tables import tables
from cosformer.lab.render.trade_off import our_trade_off, our_trade_offs, paper_trade_off, paper_trade_offs

COMMITTED = "text.json"


def show(request: Request, runs: Sequence[Run]) -> None:
    """Print the table or draw the figure, from speeds that are there or are measured now."""
    speeds = speeds_of(request)
    if request.target == "figure1":
        _figure1(request, speeds, runs)
    elif speeds is None:
        print("Table 5: not run; `cosformer reproduce table5` measures it")
    else:
        print("\n\n".join([*(table.text for table in tables(speeds)), speeds.source]))
        print(f"\nEvery row: {request.write_lines(map(_said, speeds.measurements))}")


def speeds_of(request: Request) -> Results | None:
    """What ``cosformer bench text`` gave: in the folder of the runs, measured now, or (to show only) the committed one."""
    path = request.out / COMMITTED
    if path.exists():
        return read_results(path)
    if not request.measure:
        committed = request.docs / "results" / COMMITTED
        return read_results(committed) if committed.exists() else None
    from cosformer.lab.bench import runner

    given: dict[str, Any] = {
        "attentions": request.attentions and ",".join(request.attentions),
        "lengths": request.lengths,
    }
    given |= {"batch": request.batch, "width": request.width}
    options = {name: value for name, value in given.items() if value is not None}
    return runner.measure("text", options, ["reproduce", "table5"], save=path)


def _said(m: Measurement) -> dict[str, Any]:
    return {name: value for name, value in vars(m).items() if value not in (None, "")}


def _figure1(request: Request, speeds: Results | None, runs: Sequence[Run]) -> None:
    chosen = [run for run in runs if run.recipe in lra_recipes(request.scale)]
    ours = our_trade_off(chosen, speeds) if speeds else None
    if ours is None:
        print(f"Figure 1, ours: {NOT_RUN}; it needs runs of table 4 and the speeds of table 5")
    circles = {"paper": paper_trade_offs(), "ours": our_trade_offs(chosen, speeds) if speeds else []}
    values = [{"whose": whose, **vars(x)} for whose, items in circles.items() for x in items]
    print(f"Every circle: {request.write_lines(values)}")
    for figure in (paper_trade_off(), ours):
        if figure is not None:
            print(f"Drawn: {figure.save(request.out)}")
