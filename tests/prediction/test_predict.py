"""Predictions: equal to the bare model's, one per row in order, in every format; bad rows; atomic files."""

import csv
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import cosformer
from cosformer.cli import main
from cosformer.prediction.model import Bad, Predictor
from cosformer.train import load_model

LENGTH = 48
RNG = random.Random(0)
TEXTS = ["".join(RNG.choice("abc é") for _ in range(RNG.randint(0, 80))) for _ in range(150)]


def _probabilities(model: Any, text: str) -> list[float]:
    """The definition: one text at a time, without padding, cut as the data was."""
    ids = [257, *(byte + 1 for byte in text.encode()[: LENGTH - 2]), 258]
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits.softmax(-1)[0].tolist()


def _table(path: Path, texts: list[str]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "text"], *([i, text] for i, text in enumerate(texts))])


def _read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_answers_are_the_bare_model_s_in_order(classifier: Path) -> None:
    model = load_model(classifier)
    answers = list(cosformer.predict(classifier, TEXTS, batch=16))
    assert [list(answer) for answer in answers] == [["predicted", "probability_negative", "probability_positive"]] * 150
    for text, answer in zip(TEXTS, answers, strict=True):
        wanted = _probabilities(model, text)
        assert [*answer.values()][1:] == pytest.approx(wanted, abs=1e-5)
        assert answer["predicted"] == ("negative", "positive")[wanted[1] > wanted[0]]
    assert len({round(answer["probability_negative"], 6) for answer in answers}) > 100


def test_the_folder_of_the_weights_answers_as_the_run_does(classifier: Path) -> None:
    texts = [text for text in TEXTS if text][:30]
    run, weights = (list(cosformer.predict(source, texts)) for source in (classifier, classifier / "best"))
    for a, b in zip(run, weights, strict=True):
        assert a["predicted"] == b["predicted"] and a["probability_negative"] == pytest.approx(
            b["probability_negative"]
        )


def test_pairs_are_read_as_one_row(classifier: Path) -> None:
    model = load_model(classifier)
    (answer,) = cosformer.predict(classifier, [("ab", "c")])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[257, 98, 99, 258, 258, 100, 258]])).logits
    assert answer["probability_positive"] == pytest.approx(float(logits.softmax(-1)[0, 1]), abs=1e-6)


def test_long_texts_are_read_in_windows_where_training_did(classifier: Path, tmp_path: Path, monkeypatch) -> None:
    predictor = Predictor(classifier)
    monkeypatch.setattr(predictor.read, "in_windows", True)
    text = "a fine film, " * 10
    (answer,) = cosformer.predict(predictor, [text])
    ids = [byte + 1 for byte in text.encode()]
    starts = [0, 28, 56, 84]  # 46 bytes each, at least a quarter shared
    found = []
    for start in starts:
        row = torch.tensor([[257, *ids[start : start + LENGTH - 2], 258]])
        with torch.no_grad():
            found.append(predictor.model(input_ids=row).logits.softmax(-1)[0])
    assert answer["probability_positive"] == pytest.approx(float(torch.stack(found).mean(0)[1]), abs=1e-6)
    assert not predictor.read.cut


def test_texts_that_were_cut_are_counted(classifier: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "in.txt").write_text("x" * 46 + "\n" + "x" * 47 + "\n")
    assert main(["predict", str(classifier), str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.csv")]) == 0
    assert "2 rows, 1 longer than 48 tokens and cut" in capsys.readouterr().err


def test_a_language_model_scores_texts(language_model: Path) -> None:
    """Each byte once, from those before it in its block; the first byte of the text from the start token."""
    model: Any = load_model(language_model)
    texts = ["x", "def f(x):\n    return x", "é" * 50]
    for text, answer in zip(texts, cosformer.predict(language_model, texts), strict=True):
        ids = [258, *(byte + 1 for byte in text.encode())]
        nats = 0.0
        for start in range(0, len(ids) - 1, 32):
            block = torch.tensor([ids[start : start + 33]])
            with torch.no_grad():
                chances = model(block[:, :-1]).logits.log_softmax(-1)
            nats -= float(chances.gather(2, block[:, 1:, None]).sum())
        assert answer["tokens"] == len(text.encode()) == len(ids) - 1
        assert answer["log_likelihood"] == pytest.approx(-nats, rel=1e-5)
        assert answer["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-5)


def test_padding_that_counts_is_avoided(classifier: Path) -> None:
    """With pooling over all positions only rows of one length go together."""
    predictor = Predictor(classifier, batch=8)
    predictor.model.config.pooling = "mean_all"
    together = list(predictor.answers(TEXTS))
    for text, answer in zip(TEXTS[:20], together, strict=False):
        (alone,) = predictor.answers([text])
        assert not isinstance(answer, Bad) and not isinstance(alone, Bad)
        assert answer["probability_negative"] == pytest.approx(alone["probability_negative"], abs=1e-6)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_every_form_holds_a_row_for_every_row(classifier: Path, tmp_path: Path, ending: str) -> None:
    texts = [*TEXTS[:40], 'a "quoted", text\nof two lines', "\ttab"]
    _table(tmp_path / "in.csv", texts)
    out, back = tmp_path / f"out.{ending}", tmp_path / "back.csv"
    assert main(["predict", str(classifier), str(tmp_path / "in.csv"), "-o", str(out)]) == 0
    # read again by ourselves, as input of a second prediction
    assert main(["predict", str(classifier), str(out), "-o", str(back), "--only"]) == 0
    if ending == "csv":
        rows = _read(out)
        assert [row["text"] for row in rows] == texts and [row["id"] for row in rows] == [str(i) for i in range(42)]
    again = [row["predicted"] for row in _read(back)]
    assert again == [answer["predicted"] for answer in cosformer.predict(classifier, texts)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"in.csv", out.name, "back.csv"})


def test_a_column_that_is_there_already_is_not_written_over(classifier: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "in.csv").write_text("text,predicted\na,b\n")
    assert main(["predict", str(classifier), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv")]) == 2
    assert "a column 'predicted' already" in capsys.readouterr().err and not (tmp_path / "out.csv").exists()


def test_standard_input_and_output(classifier: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary) -> None:
    lines = "".join(json.dumps({"text": text, "n": i}) + "\n" for i, text in enumerate(TEXTS[:10]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(1), "w"))
    assert main(["predict", str(classifier), "-", "-o", "-"]) == 0
    rows = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [row["n"] for row in rows] == list(range(10)) and [row["text"] for row in rows] == TEXTS[:10]
    assert [row["predicted"] for row in rows] == [a["predicted"] for a in cosformer.predict(classifier, TEXTS[:10])]


BAD = {
    "csv": (b"id,text\n0,fine\n1,too,many\n2,\xff\n3,good\n", ["2 (3 cells", "3 (not UTF-8"]),
    "jsonl": (
        b'{"text": "fine"}\n{"text": 1}\n\n[1]\n{"text": "x\n{"other": 1}\n{"text": "\\ud800"}\n{"text": "good"}\n',
        ["2 (expected a text", "3 (expected a JSON object", "4 (not JSON", "5 (the text is missing", "6 (not UTF-8"],
    ),
}


@pytest.mark.parametrize("form", BAD)
def test_bad_rows_are_named_and_stop_or_stay_empty(classifier: Path, tmp_path: Path, capsys, form: str) -> None:
    content, problems = BAD[form]
    source, out = tmp_path / f"in.{form}", tmp_path / "out.csv"
    source.write_bytes(content)
    words = ["predict", str(classifier), str(source), "-o", str(out), "--only"]
    assert main(words) == 2
    first = f"in.{form}, row {problems[0].replace(' (', ': ')}"
    assert first in capsys.readouterr().err and not out.exists()
    assert main([*words, "--bad-rows", "skip"]) == 0
    said = capsys.readouterr().err
    for problem in problems:
        assert f"in.{form}, row {problem.replace(' (', ': ')}" in said
    numbers = {int(problem.split()[0]) for problem in problems}
    rows = _read(out)
    assert [not row["predicted"] for row in rows] == [number in numbers for number in range(1, len(numbers) + 3)]
    assert f"{len(rows)} rows, {len(numbers)} of them skipped" in said


def test_mistakes_are_said_in_a_line(classifier: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "in.csv").write_text("a,b\nx,y\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "no.parquet").write_text("no parquet")
    for source, more, said in [
        ("in.csv", [], "which column holds the texts? It has a, b"),
        ("in.csv", ["--text", "c"], "unknown column 'c'"),
        ("empty.csv", [], "is empty"),
        ("no.parquet", [], "cannot be read as parquet"),
        ("missing.csv", [], "missing.csv"),
        ("in.csv", ["--text", "a", "-o", str(tmp_path / "out.xls")], "its ending says no form"),
        ("in.csv", ["--text", "a", "-o", str(tmp_path / "no" / "out.csv")], "does not exist"),
    ]:
        out = [] if "-o" in more else ["-o", str(tmp_path / "out.csv")]
        assert main(["predict", str(classifier), str(tmp_path / source), *out, *more]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_a_header_alone_gives_a_header(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\n")
    assert main(["predict", str(classifier), str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    assert (tmp_path / "out.csv").read_text() == "text,predicted,probability_negative,probability_positive\n"


def test_a_killed_prediction_leaves_what_was_there(classifier: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("before")
    command = [sys.executable, "-m", "cosformer", "predict", str(classifier), "-", "-o", str(out), "--reads", "txt"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"some text\n" * 6000)  # more than is read at once, and the end does not come
    process.stdin.flush()
    for _ in range(1200):
        parts = [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
        if parts and parts[0].stat().st_size:
            break
        time.sleep(0.1)
    assert parts and parts[0].stat().st_size
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    assert out.read_text() == "before"
    (tmp_path / "in.txt").write_text("some text\n" * 3)
    assert main(["predict", str(classifier), str(tmp_path / "in.txt"), "-o", str(out)]) == 0
    assert len(_read(out)) == 3 and sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.csv"]


def test_a_pipe_is_written_to_as_it_is(classifier: Path, tmp_path: Path) -> None:
    pipe, received = tmp_path / "out.csv", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    (tmp_path / "in.txt").write_text("some text\n" * 3)
    assert main(["predict", str(classifier), str(tmp_path / "in.txt"), "-o", str(pipe)]) == 0
    reader.join(timeout=30)
    assert received[0].count("some text") == 3 and pipe.is_fifo()


def test_a_masked_model_is_refused(classifier: Path, tmp_path: Path) -> None:
    path = tmp_path / "experiment.json"
    path.write_text((classifier / "experiment.json").read_text().replace('"task": "classify"', '"task": "mlm"'))
    (tmp_path / "best").symlink_to(classifier / "best")
    with pytest.raises(ValueError, match="'mlm', which gives no answer"):
        Predictor(tmp_path)
