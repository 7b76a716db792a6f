"""One table as text, Markdown and HTML, and its way into a document."""

import pytest

from cosformer.lab.render.html import Html
from cosformer.lab.render.table import Table, insert

TABLE = Table("Times.", ["attention", "ms"], [["cosformer", "1.0"], ["a|b", "<2>"]])


def test_the_same_cells_in_every_rendering() -> None:
    text = ["attention   ms", "---------  ---", "cosformer  1.0", "a|b        <2>"]
    assert TABLE.text.splitlines() == ["Times.", "", *text]
    markdown = ["| attention | ms |", "| --- | ---: |", "| cosformer | 1.0 |", "| a/b | <2> |"]
    assert TABLE.markdown.splitlines() == ["Times.", "", *markdown]
    assert isinstance(TABLE.html, Html) and "&lt;2&gt;" in TABLE.html and "<td>1.0</td>" in TABLE.html
    assert Table("", ["a", "b"], [["c", "d"]], numeric=False).markdown == "| a | b |\n| --- | --- |\n| c | d |"


def test_a_block_goes_between_its_markers() -> None:
    text = "a\n<!-- x:start -->\n{}\n<!-- x:end -->\nb"
    assert insert(text.format("old"), "x", "new") == text.format("new")
    within = insert("from <!-- x:start -->?<!-- x:end --> on", "x", "64")
    assert within == "from <!-- x:start -->64<!-- x:end --> on" == insert(within, "x", "64")
    for text in ("none", "<!-- x:start --><!-- x:start --><!-- x:end -->"):
        with pytest.raises(ValueError, match="once each"):
            insert(text, "x", "new")
