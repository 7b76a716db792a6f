"""The targets: those that draw, measure and check at a tiny size, the tables of trained models from made-up runs."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cosformer.report.measurements import Measurement, Results
from cosformer.runs import Run, write_runs
from studies.cosformer2022 import Request, algorithms, figures, paper, tables
from studies.cosformer2022 import __main__ as study
from studies.cosformer2022.drawings import our_trade_offs
from studies.cosformer2022.paper_tables import Entry
from studies.cosformer2022.samples import Sample, as_text, shortened


def lines_of(path: Path) -> list[dict]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def run(recipe: str, attention: str, seed: int, scores: dict[str, dict[str, float]], **more: Any) -> Run:
    values: dict[str, Any] = {"task": "classify", "status": "done", "learned": dict.fromkeys(scores, True)} | more
    return Run(recipe=recipe, attention=attention, seed=seed, scores=scores, **values)


def accuracy(recipe: str, attention: str, *values: float, **more: Any) -> list[Run]:
    return [run(recipe, attention, seed, {"test": {"accuracy": value}}, **more) for seed, value in enumerate(values)]


def test_algorithm1_of_one_key_gives_its_value() -> None:
    q, k, v = torch.ones(1, 2), torch.ones(1, 2), torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(algorithms.algorithm1(q, k, v), v)


def test_algorithm1_is_the_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["algorithm1", "--runs", str(tmp_path)]) == 0
    rows = lines_of(tmp_path / "reproduce" / "algorithm1.jsonl")
    assert all(row["same"] == (row["queries"] <= row["keys"]) for row in rows)
    assert "DIFFERS" not in capsys.readouterr().out


def test_algorithm1_notices_another_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = algorithms.cosformer_attention
    monkeypatch.setattr(algorithms, "cosformer_attention", lambda *args, **more: real(*args, **more) * 1.001)
    assert study.main(["algorithm1", "--runs", str(tmp_path)]) == 2
    assert "DIFFERS" in capsys.readouterr().out


def test_algorithm2_by_hand() -> None:
    matrix = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.4, 0.35, 0.25]])
    assert algorithms.algorithm2([matrix], 0.5).tolist() == [[1, 1, 0], [0, 0, 1], [1, 1, 0]]


def test_algorithm2_is_ours(tmp_path: Path) -> None:
    assert study.main(["algorithm2", "--runs", str(tmp_path)]) == 0
    assert all(row["same"] for row in lines_of(tmp_path / "reproduce" / "algorithm2.jsonl"))


def test_algorithm2_notices_another_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "threshold_frequency", lambda matrices, threshold: np.zeros(matrices.shape[1:]))
    assert study.main(["algorithm2", "--runs", str(tmp_path)]) == 2


def test_table7_shows_the_paper_and_what_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    from cosformer.data import load_dataset

    for train in (30, 40):
        load_dataset("listops-small", train=train, valid=5, test=6)
    assert study.main(["table7", "--runs", str(tmp_path)]) == 0
    rows = {row["set"]: row for row in lines_of(tmp_path / "reproduce" / "table7.jsonl")}
    assert rows.keys() == paper.TABLE7.keys()
    assert rows["ListOps"]["ours"] == {"train": 40, "valid": 5, "test": 6}
    assert rows["AAN"] == {"set": "AAN", "ours": None, "paper": paper.TABLE7["AAN"]}
    assert "40 / 90,000" in capsys.readouterr().out


def speeds(**milliseconds: float) -> Results:
    found = []
    for name, mode in ((name, mode) for name in milliseconds for mode in ("inference", "training")):
        place, value = {"attention": name, "mode": mode, "length": 2000}, milliseconds[name]
        found.append(Measurement(kind="speed", unit="times", better="higher", value=1.0, milliseconds=value, **place))
        found.append(Measurement(kind="memory", unit="MB", better="lower", value=64.0, **place))
    machine = dict.fromkeys(("cpu", "instructions", "cores", "threads", "system", "python", "torch"), "")
    return Results("text", "", "", machine, {"batch": 1, "width": 16}, tuple(found))


def test_figure1_takes_score_speed_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = accuracy("lra-listops-small", "cosformer", 0.4) + accuracy("lra-image-small", "cosformer", 0.5)
    runs += accuracy("lra-listops-small", "softmax", 0.3)
    (only,) = our_trade_offs(runs, speeds(cosformer=20.0, local=10.0))
    assert (only.attention, only.score, only.speed, only.memory) == ("cosformer", pytest.approx(45.0), 50.0, 64.0)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "text.json").write_text(speeds(cosformer=20.0).json())
    figures.show_figure1(Request("figure1", "small", None, 3, tmp_path, tmp_path / "docs", measure=False), runs)
    assert "cosformer" in (tmp_path / "reproduce" / "figure1.svg").read_text()
    assert (tmp_path / "reproduce" / "figure1-paper.svg").exists()
    whose = [row["whose"] for row in lines_of(tmp_path / "reproduce" / "figure1.jsonl")]
    assert whose.count("ours") == 1 and whose.count("paper") > 5


def test_table5_and_figure1_without_speeds_say_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target in ("table5", "figure1"):
        assert study.main([target, "--show", "--runs", str(tmp_path), "--docs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("not run") == 2


def test_table5_measures_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict] = []

    def measure(module: str, options: dict, words: list[str], *, program: str, save: Path) -> Results:
        assert (module, program, words) == ("benchmarks.text", "python -m studies.cosformer2022", ["table5"])
        asked.append(options)
        save.write_text(speeds(cosformer=20.0).json())
        return speeds(cosformer=20.0)

    monkeypatch.setattr("cosformer.bench.runner.measure", measure)
    words = ["table5", "--runs", str(tmp_path), "--lengths", "32,64", "--batch", "1", "--width", "16"]
    for _ in range(2):
        assert study.main([*words, "--attentions", "cosformer,softmax"]) == 0
    assert len(asked) == 1
    assert (asked[0]["lengths"], asked[0]["batch"], asked[0]["width"]) == ((32, 64), 1, 16)
    assert asked[0]["attentions"] == "cosformer,softmax"
    assert len(lines_of(tmp_path / "reproduce" / "table5.jsonl")) == 4


def test_figure4_draws_both_halves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for name, last in (("softmax", 5.0), ("cosformer", 4.5)):
        losses: dict = {"train_loss": [(1, 7.0), (9, last)], "valid_loss": [(3, 6.5), (6, 6.0), (9, last)]}
        runs.append(Run("mlm-wikitext2-small", "mlm", name, 0, "done", **losses))
    figures.show_figure4(Request("figure4", "small", None, 3, tmp_path, tmp_path), runs)
    out = capsys.readouterr().out
    assert "6.500" in out and "4.500" in out and "not run" in out
    for half in ("training", "validation"):
        assert "<svg" in (tmp_path / "reproduce" / f"figure4-{half}.svg").read_text()
    assert len(lines_of(tmp_path / "reproduce" / "figure4.jsonl")) == 2


def test_samples_are_counted_and_both_kinds_are_shown() -> None:
    def one(text: str, truth: str, ours: str, vanilla: str) -> Sample:
        return Sample("lra-listops-small", (text,), truth, ours, vanilla)

    found = [one("[MAX 2 9 ]", "9", "9", "3"), one("[MIN 2 9 ]", "2", "1", "2"), one("[MIN 1 ]", "1", "1", "1")]
    found.append(one("[SM 1 ]", "1", "2", "2"))
    text = as_text("lra-listops-small", found)
    assert "the first 4 rows: only cosFormer right 1, only the Transformer right 1, both right 1, both wrong 1" in text
    assert "  [MAX 2 9 ]\n    cosFormer 9, Transformer 3, truth 9" in text
    assert "Only the Transformer right:\n\n  [MIN 2 9 ]" in text and "[SM 1 ]" not in text
    assert "Only cosFormer right: none" in as_text("lra-listops-small", found[1:])


def test_a_run_without_weights_is_named_and_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def weights(run: Path) -> list[np.ndarray]:
        if run.name == "softmax":
            raise FileNotFoundError("the run softmax has no best weights")
        return [np.eye(8)]

    monkeypatch.setattr(figures, "finished", lambda cell, runs: runs / cell.attention)
    monkeypatch.setattr(figures, "run_weights", weights)
    figures.show_figure3(Request("figure3", "small", None, 3, tmp_path, tmp_path), [])
    out, err = capsys.readouterr()
    assert "skipped: the run softmax has no best weights" in err
    names = [row["attention"] for row in lines_of(tmp_path / "reproduce" / "figure3.jsonl")]
    assert names == ["cosformer", "relu"] and "figure3.svg" in out


def test_a_dry_run_says_what_it_would_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dry-run", "--runs", str(tmp_path)]
    paper_scale = ["--scale", "paper", "--attentions", "cosformer", "--seeds", "1"]
    assert study.main(["table2", *paper_scale, *words]) == 0
    assert capsys.readouterr().out.startswith("torchrun --nproc-per-node=8 -m -- cosformer train lm-wikitext103 ")
    assert study.main(["table5", *words]) == 0 and "table5 trains nothing" in capsys.readouterr().err
    # its claims are about the small recipes, which nobody wants on eight GPUs
    assert study.main(["ledger", "--scale", "paper", *words]) == 2
    assert "at scale small" in capsys.readouterr().err


def test_a_dry_run_says_how_long_each_run_and_all_of_them_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the times of committed runs of the same recipe; what never ran is not known."""
    times = {"softmax": 600.0, "cosformer": 1800.0}
    ran = [Run("lm-wikitext2-small", "lm", name, 0, "done", cpu_seconds=time) for name, time in times.items()]
    write_runs(tmp_path / "runs.jsonl", ran)
    words = ["--attentions", "softmax,cosformer", "--seeds", "1", "--dry-run", "--records", str(tmp_path)]
    assert study.main(["table2", *words, "--runs", str(tmp_path / "runs")]) == 0
    out, err = capsys.readouterr()
    assert [line.rpartition("# ")[2] for line in out.splitlines()] == ["about 10 min", "about 30 min"]
    assert "2 runs are missing: about 0.7 hours of one core" in err
    (tmp_path / "runs.jsonl").unlink()
    assert study.main(["table2", *words, "--runs", str(tmp_path / "runs")]) == 0
    out, err = capsys.readouterr()
    assert out.count("# time not known") == 2 and "nothing like them has run yet" in err


def test_long_inputs_keep_their_ends() -> None:
    text = "b" * 300 + "\n\n" + "e" * 300
    short = shortened(text, 20)
    assert short == "bbbbbbb ... eeeeeee" and shortened("a \n b", 20) == "a b"
    words = shortened("[MAX 2 [MIN 3 4 ] [MED 5 6 7 ] [SM 1 1 ] ]", 30)
    assert words == "[MAX 2 [MIN ... [SM 1 1 ] ]" and len(words) <= 30


# --- tables 1 to 4 and 6: ours beside the paper's


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
    which = {"target": "table4", "attention": "cosformer", "column": "listops", "paper": 37.9}
    numbers = {"seeds": 3, "values": pytest.approx((40, 42, 44)), "error": pytest.approx(2 / math.sqrt(3))}
    numbers |= {"ours": pytest.approx(42), "learned": 3, "diverged": 0}
    assert entry.as_dict("table4") == which | numbers


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
    tables.show_scores(Request("table3", "small", ("cosformer",), 3, tmp_path, tmp_path), runs)
    written = lines_of(tmp_path / "reproduce" / "table3.jsonl")
    assert [value["column"] for value in written] == ["QQP", "SST-2", "MNLI", "IMDB", "AMAZON", "average"]
    assert written[0]["ours"] == pytest.approx(80) and written[1]["ours"] is None
    assert "80.00 (one seed) / 89.26" in capsys.readouterr().out
