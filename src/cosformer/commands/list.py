"""``cosformer list``: the attentions, recipes, data sets, tasks and backends there are."""

import argparse

COLUMNS = ("name", "paper", "time", "memory", "causal", "cross", "streaming", "deviations")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", choices=list(TABLES), nargs="?", default="attentions", help="what to list (default: %(default)s)")
    add("--markdown", action="store_true", help="print a Markdown table")


def run(args: argparse.Namespace) -> int:
    from cosformer.report.table import Table

    columns, make_rows = TABLES[args.what]
    rows = make_rows()
    named = [(f"`{name}`", *rest) for name, *rest in rows]
    print(Table("", columns, named, numeric=False).markdown if args.markdown else plain_table(columns, rows))
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


def recipe_rows() -> list[tuple[str, ...]]:
    """Every recipe with its task, its data set and its note; first those for one's own files."""
    from cosformer.recipes import RECIPES
    from cosformer.recipes.general import GENERAL

    own = [(name, name, data, f"{make.__doc__} Takes --data PATH.") for name, (data, _, make) in GENERAL.items()]
    experiments = [(name, make()) for name, make in RECIPES.items()]
    return own + [(name, found.task, found.data.name, found.note) for name, found in experiments]


def data_rows() -> list[tuple[str, ...]]:
    """Every data set; `cosformer data list` also says which are prepared on this machine."""
    from cosformer.data import DATASETS

    return [(name, summary) for name, (_, _, summary) in DATASETS.items()]


def task_rows() -> list[tuple[str, ...]]:
    """Every task with what its models predict."""
    from cosformer.tasks import TASKS

    return [(name, summary) for name, (_, _, summary) in TASKS.items()]


def backend_rows() -> list[tuple[str, ...]]:
    """Every backend of the operator, and whether it runs on this machine's CPU in float32."""
    from cosformer.ops.backends import BACKENDS, available_backends

    here = available_backends()
    return [(name, "yes" if name in here else "no", summary) for name, summary in BACKENDS.items()]


TABLES = {
    "attentions": (COLUMNS, attention_rows),
    "recipes": (("name", "task", "data", "note"), recipe_rows),
    "data": (("name", "what it is"), data_rows),
    "tasks": (("name", "what the model predicts"), task_rows),
    "backends": (("name", "runs here on the CPU", "what it is"), backend_rows),
}


def plain_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width; the last one runs free."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)][:-1]
    lines = []
    for row in (columns, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join((*cells, row[-1])))
    return "\n".join(lines)
