"""``cosformer list attentions`` says what the table and the traits say."""

import pytest

from cosformer.attention import ATTENTIONS, attention_class
from cosformer.cli import main
from cosformer.commands.list import COLUMNS, attention_rows


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


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["list", "planets"])
    assert stopped.value.code == 2 and "attentions" in capsys.readouterr().err
