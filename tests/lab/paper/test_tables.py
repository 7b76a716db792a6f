"""Tables 1 to 4 and 6 from made-up runs: ours beside the paper's."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cosformer.lab.paper import tables
from cosformer.lab.paper.request import Request
from cosformer.lab.records import Run
from cosformer.lab.render.paper_tables import Entry


def run(recipe: str, attention: str, seed: int, scores: dict[str, dict[str, float]], **more: Any) -> Run:
    values: dict[str, Any] = {"task": "classify", "status": "done", "learned": dict.fromkeys(scores, True)} | more
    return Run(recipe=recipe, attention=attention, seed=seed, scores=scores, **values)


def accuracy(recipe: str, attention: str, *values: float, **more: Any) -> list[Run]:
    return [run(recipe, attention, seed, {"test": {"accuracy": value}}, **more) for seed, value in enumerate(values)]


def cell(target: str, runs: list[Run], attention: str, column: str) -> Entry:
    found = tables.cells(target, "small", runs)
    (entry,) = [entry for entry in found if (entry.attention, entry.column) == (attention, column)]
    return entry


def test_table4_has_ours_the_paper_s_and_not_run() -> None:
    runs = accuracy("lra-listops-small", "cosformer", 0.40, 0.42, 0.44)
    entry = cell("table4", runs, "cosformer", "listops")
    assert entry.ours.values == pytest.approx((40, 42, 44)) and entry.paper == 37.9
    text = tables.as_text("table4", "small", runs, ["cosformer", "softmax"])
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
    runs = accuracy("lra-listops-small", "cosformer", 0.4) + accuracy("lra-image-small", "cosformer", 0.6)
    assert cell("table4", runs, "cosformer", "average").ours.values == pytest.approx((50,))
    runs += accuracy("lra-listops-small", "softmax", 0.3)
    assert cell("table4", runs, "cosformer", "average").ours.values == pytest.approx((40,))
    text = tables.as_text("table4", "small", runs, ["cosformer"])
    assert "average: over lra-listops-small; the paper's over 5 data sets" in text
    assert cell("table6", runs, "relu", "lra").ours.values == ()
    assert cell("table6", runs, "cosformer", "lra").ours.values == pytest.approx((40,))


def test_table2_is_in_words() -> None:
    scores = {"loss": 2.0, "word_perplexity": math.exp(10.0)}  # five tokens a word
    runs = [run("lm-wikitext2-small", "cosformer", 0, {"valid": scores, "test": scores})]
    assert cell("table2", runs, "cosformer", "valid").ours.values == pytest.approx((math.exp(10),))
    assert cell("table2", runs, "cosformer", "test").paper == 23.1
    assert "22,026 (one seed) / 23.1" in tables.as_text("table2", "small", runs, None)


def test_what_did_not_learn_is_shown_as_it_is_and_marked() -> None:
    runs = accuracy("lra-pathfinder-small", "cosformer", 0.48, learned={"test": False})
    runs += accuracy("lra-image-small", "cosformer", 0.2)
    text = tables.as_text("table4", "small", runs, ["cosformer"])
    assert "48.00 (one seed)* / 70.33" in text and "20.00 (one seed) / 43.17" in text
    assert "* No better than a model that ignores its input." in text
    assert "*" not in tables.as_text("table4", "small", runs[1:], ["cosformer"])
    runs.append(run("lra-pathfinder-small", "cosformer", 1, {}, status="diverged"))
    text = tables.as_text("table4", "small", runs, ["cosformer"])
    assert "48.00 (one seed)* (1 diverged) / 70.33" in text and "* No better than" in text


def test_a_run_that_diverged_is_counted_and_has_no_score() -> None:
    runs = accuracy("lra-image-small", "cosformer", 0.2, 0.3)
    runs.append(run("lra-image-small", "cosformer", 2, {}, status="diverged"))
    runs.append(run("lra-text-small", "cosformer", 0, {}, status="diverged"))
    assert str(cell("table4", runs, "cosformer", "image")) == "25.0 ± 5.0 (1 diverged) / 43.17"
    assert str(cell("table4", runs, "cosformer", "text")) == "1 diverged / 63.41"


def test_below_the_table_stands_how_ours_came_about() -> None:
    runs = accuracy("finetune-sst2-small", "cosformer", 0.8, note="Small: made up for this test.")
    text = tables.as_text("table1", "small", runs, None)
    assert "SST-2: finetune-sst2-small, accuracy in percent. Small: made up for this test." in text
    assert "  QQP: not run\n" in text and "1.327 nats" in text


def test_table1_takes_the_validation_loss_as_the_paper_does() -> None:
    scores = {"valid": {"loss": 2.0}, "test": {"loss": 2.5}}
    runs = [run("mlm-wikitext2-small", "relu", 0, scores), *accuracy("finetune-sst2-small", "relu", 0.8)]
    assert cell("table1", runs, "relu", "loss").ours.values == (2.0,)
    assert cell("table1", runs, "relu", "SST-2").ours.values == (80.0,)
    assert cell("table1", runs, "relu", "SST-2").paper == 89.9


def test_the_cells_are_written_as_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = accuracy("finetune-qqp-small", "cosformer", 0.8)
    tables.show(Request("table3", "small", ("cosformer",), 3, tmp_path, tmp_path), runs)
    written = [json.loads(text) for text in (tmp_path / "reproduce" / "table3.jsonl").read_text().splitlines()]
    assert [value["column"] for value in written] == ["QQP", "SST-2", "MNLI", "IMDB", "AMAZON", "average"]
    assert written[0]["ours"] == pytest.approx(80) and written[1]["ours"] is None
    assert "80.00 (one seed) / 89.26" in capsys.readouterr().out
