"""``cosformer list`` says what the tables and the traits say."""

import pytest

from cosformer.attention import ATTENTIONS, attention_class
from cosformer.cli import main
from cosformer.commands.list import COLUMNS, attention_rows
from cosformer.data import DATASETS
from cosformer.ops.backends import BACKENDS, available_backends
from cosformer.recipes import RECIPES
from cosformer.recipes.general import GENERAL
from cosformer.tasks import TASKS


def test_every_attention_has_its_row(capsys):
    assert main(["list", "attentions"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert tuple(header.split()) == COLUMNS
    assert [line.split()[0] for line in lines] == list(ATTENTIONS)
    for name, line in zip(ATTENTIONS, lines, strict=True):
        traits = attention_class(name).traits
        assert all(text in line for text in (traits.paper, traits.time, traits.memory, *traits.deviations))
        starts = {column: header.index(column) for column in COLUMNS}
        for column in ("causal", "cross", "streaming"):
            said = line[starts[column] :].split()[0]
            assert said == ("yes" if getattr(traits, column) else "no")


def test_markdown_is_a_table_of_the_same_rows(capsys):
    assert main(["list", "attentions", "--markdown"]) == 0
    header, rule, *lines = capsys.readouterr().out.splitlines()
    assert header == f"| {' | '.join(COLUMNS)} |"
    assert rule == "|" + " --- |" * len(COLUMNS)
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert [(row[0].strip("`"), *row[1:]) for row in cells] == attention_rows()


@pytest.mark.parametrize(
    ("what", "known"), [("recipes", [*GENERAL, *RECIPES]), ("data", DATASETS), ("tasks", TASKS), ("backends", BACKENDS)]
)
def test_the_other_tables_have_a_row_for_every_name(what, known, capsys):
    assert main(["list", what]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(known)


def test_backends_say_whether_they_run_here(capsys):
    assert main(["list", "backends"]) == 0
    said = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:])
    assert {name for name, here in said.items() if here == "yes"} == set(available_backends())


def test_without_a_name_the_attentions_are_listed(capsys):
    assert main(["list"]) == main(["list", "attentions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["list", "planets"])
    assert stopped.value.code == 2 and "attentions" in capsys.readouterr().err
