"""Table 5 and figure 1: speed and memory of the byte-level text classifier, and both against the score."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from cosformer.lab import numbers as paper
from cosformer.lab.bench import text
from cosformer.lab.bench.results import read, rows_of
from cosformer.lab.bench.table import as_text, source
from cosformer.lab.paper.cells import lra_recipes
from cosformer.lab.paper.ledger import Line, sample
from cosformer.lab.paper.request import Request
from cosformer.lab.paper.tables import average_measure
from cosformer.lab.paper.verdict import NOT_RUN
from cosformer.lab.render.trade_off import TradeOff, trade_off

COMMITTED = "text.json"


def show(request: Request, lines: Sequence[Line]) -> None:
    """Print the table or draw the figure, from speeds that are there or are measured now."""
    speeds = speeds_of(request)
    if request.target == "table5":
        if speeds is None:
            print("Table 5: not run; `cosformer reproduce table5` measures it")
            return
        print(f"{as_text(text.tables(speeds))}\n\n{source(speeds)}")
        print(f"\nEvery row: {request.write_lines(speeds['rows'])}")
        return
    _figure1(request, speeds, lines)


def speeds_of(request: Request) -> dict[str, Any] | None:
    """What ``cosformer bench text`` gave: in the folder of the runs, measured now, or (to show only) the committed one."""
    path = request.out / COMMITTED
    if path.exists():
        return read(path)
    if not request.measure:
        committed = request.docs / "results" / COMMITTED
        return read(committed) if committed.exists() else None
    found = text.measure(_arguments(request))
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def trade_offs(speeds: dict[str, Any], lines: Sequence[Line], scale: str, length: int) -> list[TradeOff]:
    """Ours, of each attention that has both a score and a speed."""
    rows = {row.id: row for row in rows_of(speeds)}
    measure = average_measure(lra_recipes(scale), lines)
    found = []
    for name in dict.fromkeys(line["attention"] for line in lines):
        speed, memory = rows.get(f"text/training/{length}/{name}"), rows.get(f"text/memory/training/{length}/{name}")
        score = sample(lines, measure, name) if measure else None
        if speed is not None and name in speed.milliseconds and score is not None and score.values:
            peak = memory.value if memory is not None else None
            found.append(TradeOff(name, score.mean, 1e3 / speed.milliseconds[name], peak))
    return found


def _figure1(request: Request, speeds: dict[str, Any] | None, lines: Sequence[Line]) -> None:
    theirs = [
        TradeOff(name, row["score"], row["speed"], None)
        for name, row in paper.FIGURE1.items()
        if row["score"] is not None and row["speed"] is not None
    ]
    labels = {"score": "accuracy, mean of the tasks (%)", "speed": "training steps per second"}
    drawn = [trade_off(theirs, name="figure1-paper", title="Long-Range Arena, the paper's numbers", **labels)]
    lengths = (
        sorted({int(row.id.split("/")[2]) for row in rows_of(speeds) if row.id.startswith("text/training/")})
        if speeds
        else []
    )
    length = 2000 if 2000 in lengths else max(lengths, default=0)
    ours = trade_offs(speeds, lines, request.scale, length) if speeds else []
    if ours:
        title = f"Long-Range Arena, ours ({request.scale}), speed at {length:,} bytes"
        drawn.append(trade_off(ours, name="figure1", title=title, **labels))
    else:
        print(f"Figure 1, ours: {NOT_RUN}; it needs runs of table 4 and the speeds of table 5")
    values = [{"whose": whose, **vars(x)} for whose, items in (("paper", theirs), ("ours", ours)) for x in items]
    print(f"Every circle: {request.write_lines(values)}")
    for figure in drawn:
        print(f"Drawn: {figure.save(request.out)}")


def _arguments(request: Request) -> argparse.Namespace:
    """Those of ``cosformer bench text``: its own, and what this request changes."""
    parser = argparse.ArgumentParser()
    text.configure(parser)
    words = []
    for name in ("attentions", "lengths"):
        value: tuple[Any, ...] | None = getattr(request, name)
        words += [f"--{name}", ",".join(map(str, value))] if value else []
    for name in ("batch", "width"):
        words += [f"--{name}", str(getattr(request, name))] if getattr(request, name) else []
    return parser.parse_args(words)
