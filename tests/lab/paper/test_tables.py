"""Tables 1 to 4 and 6 from made-up lines: ours beside the paper's."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cosformer.lab.paper import tables
from cosformer.lab.paper.request import Request


def line(recipe: str, attention: str, seed: int, scores: dict[str, dict[str, float]], base: float) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "attention": attention,
        "seed": seed,
        "status": "done",
        "scores": scores,
        "baseline": {name: {"name": "b", "score": base, "error": 0.0} for name in scores},
        "learned": dict.fromkeys(scores, True),
    }


def accuracy(recipe: str, attention: str, *values: float) -> list[dict[str, Any]]:
    return [line(recipe, attention, seed, {"test": {"accuracy": value}}, 0.1) for seed, value in enumerate(values)]


def cell(target: str, lines: list[dict[str, Any]], attention: str, column: str) -> tables.Entry:
    found = tables.entries(target, "small", lines, None)
    (entry,) = [entry for entry in found if (entry.attention, entry.column) == (attention, column)]
    return entry


def test_table4_has_ours_the_paper_s_and_not_run() -> None:
    lines = accuracy("lra-listops-small", "cosformer", 0.40, 0.42, 0.44)
    entry = cell("table4", lines, "cosformer", "listops")
    assert entry.ours.values == pytest.approx((40, 42, 44)) and entry.paper == 37.9
    text = tables.as_text("table4", "small", lines, ["cosformer", "softmax"])
    assert "42.0 ± 1.2 / 37.90" in text and "not run / 36.37" in text
    assert entry.as_dict("table4") == {
        "target": "table4",
        "attention": "cosformer",
        "column": "listops",
        "ours": pytest.approx(42),
        "seeds": 3,
        "values": pytest.approx((40, 42, 44)),
        "error": pytest.approx(2 / math.sqrt(3)),
        "learned": 3,
        "diverged": 0,
        "paper": 37.9,
    }


def test_averages_go_over_what_every_attention_has() -> None:
    lines = accuracy("lra-listops-small", "cosformer", 0.4) + accuracy("lra-image-small", "cosformer", 0.6)
    assert cell("table4", lines, "cosformer", "average").ours.values == pytest.approx((50,))
    lines += accuracy("lra-listops-small", "softmax", 0.3)
    assert cell("table4", lines, "cosformer", "average").ours.values == pytest.approx((40,))
    text = tables.as_text("table4", "small", lines, ["cosformer"])
    assert "average: over lra-listops-small; the paper's over 5 data sets" in text
    assert cell("table6", lines, "relu", "lra").ours.values == ()
    assert cell("table6", lines, "cosformer", "lra").ours.values == pytest.approx((40,))


def test_table2_is_in_words() -> None:
    scores = {"loss": 2.0, "word_perplexity": math.exp(10.0)}  # five tokens a word
    lines = [line("lm-wikitext2-small", "cosformer", 0, {"valid": scores, "test": scores}, 3.0)]
    assert cell("table2", lines, "cosformer", "valid").ours.values == pytest.approx((math.exp(10),))
    assert cell("table2", lines, "cosformer", "test").paper == 23.1
    assert "22,026 (one seed) / 23.1" in tables.as_text("table2", "small", lines, None)


def test_what_did_not_learn_is_shown_as_it_is_and_marked() -> None:
    lines = accuracy("lra-pathfinder-small", "cosformer", 0.48) + accuracy("lra-image-small", "cosformer", 0.2)
    lines[0]["baseline"]["test"]["score"] = 0.49
    lines[0]["learned"]["test"] = False
    text = tables.as_text("table4", "small", lines, ["cosformer"])
    assert "48.00 (one seed)* / 70.33" in text and "20.00 (one seed) / 43.17" in text
    assert "* No better than a model that ignores its input." in text
    assert "*" not in tables.as_text("table4", "small", lines[1:], ["cosformer"])
    lines.append(line("lra-pathfinder-small", "cosformer", 1, {}, 0.1) | {"status": "diverged"})
    text = tables.as_text("table4", "small", lines, ["cosformer"])
    assert "48.00 (one seed)* (1 diverged) / 70.33" in text and "* No better than" in text


def test_a_run_that_diverged_is_counted_and_has_no_score() -> None:
    lines = accuracy("lra-image-small", "cosformer", 0.2, 0.3)
    lines.append(line("lra-image-small", "cosformer", 2, {}, 0.1) | {"status": "diverged"})
    lines.append(line("lra-text-small", "cosformer", 0, {}, 0.1) | {"status": "diverged"})
    assert str(cell("table4", lines, "cosformer", "image")) == "25.0 ± 5.0 (1 diverged) / 43.17"
    assert str(cell("table4", lines, "cosformer", "text")) == "1 diverged / 63.41"


def test_below_the_table_stands_how_ours_came_about() -> None:
    lines = accuracy("finetune-sst2-small", "cosformer", 0.8)
    lines[0]["note"] = "Small: made up for this test."
    text = tables.as_text("table1", "small", lines, None)
    assert "SST-2: finetune-sst2-small, accuracy in percent. Small: made up for this test." in text
    assert "  QQP: not run\n" in text and "1.327 nats" in text


def test_table1_takes_the_validation_loss_as_the_paper_does() -> None:
    scores = {"valid": {"loss": 2.0}, "test": {"loss": 2.5}}
    lines = [line("mlm-wikitext2-small", "relu", 0, scores, 7.0), *accuracy("finetune-sst2-small", "relu", 0.8)]
    assert cell("table1", lines, "relu", "loss").ours.values == (2.0,)
    assert cell("table1", lines, "relu", "SST-2").ours.values == (80.0,)
    assert cell("table1", lines, "relu", "SST-2").paper == 89.9


def test_the_cells_are_written_as_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = accuracy("finetune-qqp-small", "cosformer", 0.8)
    tables.show(Request("table3", "small", ("cosformer",), 3, tmp_path, tmp_path), lines)
    written = [json.loads(text) for text in (tmp_path / "reproduce" / "table3.jsonl").read_text().splitlines()]
    assert [value["column"] for value in written] == ["QQP", "SST-2", "MNLI", "IMDB", "AMAZON", "average"]
    assert written[0]["ours"] == pytest.approx(80) and written[1]["ours"] is None
    assert "80.00 (one seed) / 89.26" in capsys.readouterr().out
