"""Tables 1 to 4 and 6 from made-up lines: ours beside the paper's."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cosformer.reproduce import tables
from cosformer.reproduce.request import Request


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
    assert "42.0 ± 1.2 / 37.9" in text and "not run / 36.37" in text
    assert entry.as_dict("table4") == {
        "target": "table4",
        "attention": "cosformer",
        "column": "listops",
        "ours": pytest.approx(42),
        "seeds": 3,
        "values": pytest.approx((40, 42, 44)),
        "error": pytest.approx(2 / math.sqrt(3)),
        "paper": 37.9,
    }


def test_averages_go_over_what_every_attention_has() -> None:
    lines = accuracy("lra-listops-small", "cosformer", 0.4) + accuracy("lra-image-small", "cosformer", 0.6)
    assert cell("table4", lines, "cosformer", "average").ours.values == pytest.approx((50,))
    lines += accuracy("lra-listops-small", "softmax", 0.3)
    assert cell("table4", lines, "cosformer", "average").ours.values == pytest.approx((40,))
    assert "average: lra-listops-small." in tables.as_text("table4", "small", lines, ["cosformer"])
    assert cell("table6", lines, "relu", "lra").ours.values == ()
    assert cell("table6", lines, "cosformer", "lra").ours.values == pytest.approx((40,))


def test_table2_is_in_words_and_no_worse_than_the_baseline() -> None:
    scores = {"loss": 2.0, "word_perplexity": math.exp(10.0)}  # five tokens a word
    good = line("lm-wikitext2-small", "cosformer", 0, {"valid": scores, "test": scores}, 3.0)
    bad = line("lm-wikitext2-small", "softmax", 0, {"valid": scores, "test": scores}, 1.5)
    assert cell("table2", [good], "cosformer", "valid").ours.values == pytest.approx((math.exp(10),))
    assert cell("table2", [bad], "softmax", "test").ours.values == pytest.approx((math.exp(7.5),))
    assert cell("table2", [good], "cosformer", "test").paper == 23.1


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
    assert "80 (one seed) / 89.26" in capsys.readouterr().out
