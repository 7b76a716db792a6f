"""The targets that draw, measure and check, at a tiny size."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cosformer import cli
from cosformer.lab import numbers as paper
from cosformer.lab.paper import algorithms, figures
from cosformer.lab.paper.request import Request
from cosformer.lab.paper.samples import Sample, as_text, shortened
from cosformer.lab.records import Measurement, Results, Run, write_runs
from cosformer.lab.render.trade_off import our_trade_offs


def lines_of(path: Path) -> list[dict]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_algorithm1_of_one_key_gives_its_value() -> None:
    q, k, v = torch.ones(1, 2), torch.ones(1, 2), torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(algorithms.algorithm1(q, k, v), v)


def test_algorithm1_is_the_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reproduce", "algorithm1", "--runs", str(tmp_path)]) == 0
    rows = lines_of(tmp_path / "reproduce" / "algorithm1.jsonl")
    assert all(row["same"] == (row["queries"] <= row["keys"]) for row in rows)
    assert "DIFFERS" not in capsys.readouterr().out


def test_algorithm1_notices_another_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = algorithms.cosformer_attention
    monkeypatch.setattr(algorithms, "cosformer_attention", lambda *args, **more: real(*args, **more) * 1.001)
    assert cli.main(["reproduce", "algorithm1", "--runs", str(tmp_path)]) == cli.EXIT_USAGE
    assert "DIFFERS" in capsys.readouterr().out


def test_algorithm2_by_hand() -> None:
    matrix = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.4, 0.35, 0.25]])
    assert algorithms.algorithm2([matrix], 0.5).tolist() == [[1, 1, 0], [0, 0, 1], [1, 1, 0]]


def test_algorithm2_is_ours(tmp_path: Path) -> None:
    assert cli.main(["reproduce", "algorithm2", "--runs", str(tmp_path)]) == 0
    assert all(row["same"] for row in lines_of(tmp_path / "reproduce" / "algorithm2.jsonl"))


def test_algorithm2_notices_another_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "threshold_frequency", lambda matrices, threshold: np.zeros(matrices.shape[1:]))
    assert cli.main(["reproduce", "algorithm2", "--runs", str(tmp_path)]) == cli.EXIT_USAGE


def test_table7_shows_the_paper_and_what_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    from cosformer.data import load_dataset

    for train in (30, 40):
        load_dataset("listops-small", train=train, valid=5, test=6)
    assert cli.main(["reproduce", "table7", "--runs", str(tmp_path)]) == 0
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


def accuracy(recipe: str, attention: str, value: float) -> Run:
    scores = {"test": {"accuracy": value}}
    return Run(recipe, "classify", attention, 0, "done", scores=scores, learned={"test": True})


def test_figure1_takes_score_speed_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [accuracy("lra-listops-small", "cosformer", 0.4), accuracy("lra-image-small", "cosformer", 0.5)]
    runs.append(accuracy("lra-listops-small", "softmax", 0.3))
    found = our_trade_offs(runs, speeds(cosformer=20.0, local=10.0))
    assert [(x.attention, x.score, x.speed, x.memory) for x in found] == [
        ("cosformer", pytest.approx(45.0), 50.0, 64.0)
    ]
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "results" / "text.json").write_text(speeds(cosformer=20.0).json())
    figures.show(Request("figure1", "small", None, 3, tmp_path, tmp_path / "docs", measure=False), runs)
    assert "cosformer" in (tmp_path / "reproduce" / "figure1.svg").read_text()
    assert (tmp_path / "reproduce" / "figure1-paper.svg").exists()
    whose = [row["whose"] for row in lines_of(tmp_path / "reproduce" / "figure1.jsonl")]
    assert whose.count("ours") == 1 and whose.count("paper") > 5


def test_table5_and_figure1_without_speeds_say_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target in ("table5", "figure1"):
        assert cli.main(["reproduce", target, "--show", "--runs", str(tmp_path), "--docs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("not run") == 2


def test_table5_measures_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict] = []

    def measure(name: str, options: dict, words: list[str], *, save: Path) -> Results:
        asked.append(options)
        save.write_text(speeds(cosformer=20.0).json())
        return speeds(cosformer=20.0)

    monkeypatch.setattr("cosformer.lab.bench.runner.measure", measure)
    words = ["reproduce", "table5", "--runs", str(tmp_path), "--lengths", "32,64", "--batch", "1", "--width", "16"]
    for _ in range(2):
        assert cli.main([*words, "--attentions", "cosformer,softmax"]) == 0
    assert len(asked) == 1
    assert (asked[0]["lengths"], asked[0]["batch"], asked[0]["width"]) == ((32, 64), 1, 16)
    assert asked[0]["attentions"] == "cosformer,softmax"
    assert len(lines_of(tmp_path / "reproduce" / "table5.jsonl")) == 4


def test_figure4_draws_both_halves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for name, last in (("softmax", 5.0), ("cosformer", 4.5)):
        losses: dict = {"train_loss": [(1, 7.0), (9, last)], "valid_loss": [(3, 6.5), (6, 6.0), (9, last)]}
        runs.append(Run("mlm-wikitext2-small", "mlm", name, 0, "done", **losses))
    figures.show(Request("figure4", "small", None, 3, tmp_path, tmp_path), runs)
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
    figures.show(Request("figure3", "small", None, 3, tmp_path, tmp_path), [])
    out, err = capsys.readouterr()
    assert "skipped: the run softmax has no best weights" in err
    names = [row["attention"] for row in lines_of(tmp_path / "reproduce" / "figure3.jsonl")]
    assert names == ["cosformer", "relu"] and "figure3.svg" in out


def test_a_dry_run_says_what_it_would_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dry-run", "--runs", str(tmp_path)]
    assert (
        cli.main(["reproduce", "table2", "--scale", "paper", "--attentions", "cosformer", "--seeds", "1", *words]) == 0
    )
    assert capsys.readouterr().out.startswith("torchrun --nproc-per-node=8 -m -- cosformer train lm-wikitext103 ")
    assert cli.main(["reproduce", "table5", *words]) == 0 and "table5 trains nothing" in capsys.readouterr().err
    # its claims are about the small recipes, which nobody wants on eight GPUs
    assert cli.main(["reproduce", "ledger", "--scale", "paper", *words]) == cli.EXIT_USAGE
    assert "at scale small" in capsys.readouterr().err


def test_a_dry_run_says_how_long_each_run_and_all_of_them_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the times of committed runs of the same recipe; what never ran is not known."""
    times = {"softmax": 600.0, "cosformer": 1800.0}
    (tmp_path / "results").mkdir()
    ran = [
        Run("lm-wikitext2-small", "lm", name, 0, "done", cpu_seconds=time, machine={"cpu": "a"})
        for name, time in times.items()
    ]
    write_runs(tmp_path / "results" / "runs.jsonl", ran)
    words = ["--attentions", "softmax,cosformer", "--seeds", "1", "--dry-run", "--docs", str(tmp_path)]
    assert cli.main(["reproduce", "table2", *words, "--runs", str(tmp_path / "runs")]) == 0
    out, err = capsys.readouterr()
    assert [line.rpartition("# ")[2] for line in out.splitlines()] == ["about 10 min", "about 30 min"]
    assert "2 runs are missing: about 0.7 hours of one core" in err
    (tmp_path / "results" / "runs.jsonl").unlink()
    assert cli.main(["reproduce", "table2", *words, "--runs", str(tmp_path / "runs")]) == 0
    out, err = capsys.readouterr()
    assert out.count("# time not known") == 2 and "nothing like them has run yet" in err


def test_long_inputs_keep_their_ends() -> None:
    text = "b" * 300 + "\n\n" + "e" * 300
    short = shortened(text, 20)
    assert short == "bbbbbbb ... eeeeeee" and shortened("a \n b", 20) == "a b"
    words = shortened("[MAX 2 [MIN 3 4 ] [MED 5 6 7 ] [SM 1 1 ] ]", 30)
    assert words == "[MAX 2 [MIN ... [SM 1 1 ] ]" and len(words) <= 30
