"""``cosformer list``: the table of attentions."""

import argparse

COLUMNS = ("name", "paper", "time", "memory", "causal", "cross", "streaming", "deviations")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", choices=["attentions"], help="which table to print")
    add("--markdown", action="store_true", help="as a markdown table")


def run(args: argparse.Namespace) -> int:
    from cosformer.lab.render.table import Table

    rows = attention_rows()
    named = [(f"`{name}`", *rest) for name, *rest in rows]
    print(Table("", COLUMNS, named, numeric=False).markdown if args.markdown else plain_table(rows))
    return 0


def attention_rows() -> list[tuple[str, ...]]:
    """One row of COLUMNS for each attention, in the order of the table."""
    from cosformer.attention import ATTENTIONS, attention_class

    rows = []
    for name in ATTENTIONS:
        traits = attention_class(name).traits
        can = ("yes" if there else "no" for there in (traits.causal, traits.cross, traits.streaming))
        rows.append((name, traits.paper, traits.time, traits.memory, *can, "; ".join(traits.deviations) or "none"))
    return rows


def plain_table(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width; the last one runs free."""
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)][:-1]
    lines = []
    for row in (COLUMNS, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join((*cells, row[-1])))
    return "\n".join(lines)
