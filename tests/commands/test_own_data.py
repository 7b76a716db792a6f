"""`cosformer train classify --data reviews.csv` and similar: one line trains; bad input is one sentence."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

import cosformer
from cosformer.cli import main
from cosformer.experiment import load_experiment
from cosformer.shipped import STDLIB_MODEL

pytestmark = pytest.mark.usefixtures("one_thread")
# three updates of a model that is too small to learn
TINY = ["--train.steps", "3", "--train.batch", "4", "--train.eval-every", "3", "--train.save-every", "2", "--quiet"]
TINY += [
    "--model.num-hidden-layers",
    "1",
    "--model.hidden-size",
    "16",
    "--model.num-attention-heads",
    "2",
    "--model.intermediate-size",
    "16",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def reviews(folder: Path, rows: int = 40, longest: int = 0) -> None:
    lines = [f"{i},{'fine' if i % 2 else 'awful'} film {i},{'positive' if i % 2 else 'negative'}" for i in range(rows)]
    lines += [f"{rows},{'very ' * (longest // 5)}good,positive"] * bool(longest)
    (folder / "reviews.csv").write_text("\n".join(["id,review,sentiment", *lines]) + "\n")


def test_one_line_trains_a_classifier_and_says_what_it_decided(folder: Path, capsys) -> None:
    reviews(folder)
    assert main(["train", "classify", "--data", "reviews.csv", "--run", "run", *TINY]) == 0
    said = capsys.readouterr()
    for part in (
        "text: column 'review'",
        "label: column 'sentiment'",
        "2 classes in training: negative",
        "rows: train 32, valid 4, test 4",
    ):
        assert part in said.err
    assert "majority class" in said.out and "valid" in said.out and "test" in said.out
    scores = json.loads((folder / "run" / "result.json").read_text())["scores"]["valid"]
    assert scores.keys() == {"accuracy", "error", "loss", "macro_f1"} and 0 <= scores["macro_f1"] <= 1
    assert "TF-IDF and logistic regression" in said.out, "what a simple model of texts reaches"
    found = load_experiment(folder / "run")
    assert found.recipe == "classify" and found.train.steps == 3 and found.model.hidden_size == 16
    assert found.data.options["text"] == "review" and found.data.options["label"] == "sentiment"
    assert len(str(found.data.options["sha256"])) == 64 and found.data.options["tokenizer"] == "bpe-lower:8000"
    assert f"longest {found.data.length}\n" in said.err, "what was decided is written down"


def test_what_is_printed_and_paced_follows_the_options(folder: Path, capsys) -> None:
    reviews(folder)
    line = ["train", "classify", "--data", "reviews.csv", "--run", "run", "--quiet", "--train.steps", "21"]
    assert main([*line, "--train.batch", "4", "--train.save-every", "21", *TINY[-8:]]) == 0
    said = capsys.readouterr().err
    assert "1 layers of width 16; 21 updates of 4 rows" in said and "tokenizer: bpe-lower:8000" in said
    found = load_experiment(folder / "run").train
    assert (found.steps, found.warmup, found.eval_every, found.save_every) == (21, 2, 2, 21)


def test_two_texts_a_row_are_for_match(folder: Path, capsys) -> None:
    write_kinds(folder)
    for recipe, file in (("classify", "pairs.jsonl"), ("regress", "similar.jsonl")):
        assert main(["train", recipe, "--data", file, "--data.options.second", "sentence2"]) == 2
        error = capsys.readouterr().err
        assert "use the recipe match" in error and len(error.splitlines()) == 1 and not (folder / "runs").exists()


def test_predict_reads_the_files_that_training_reads(folder: Path) -> None:
    """Delimiter, encoding, compression and arrow: the same rows, whatever they come in."""
    rows = [(f"caf\xe9, {'good' if i % 2 else 'bad'} {i}", "ab"[i % 2]) for i in range(40)]
    lines = "".join(f"{text};{label}\n" for text, label in [("review", "sentiment"), *rows])
    (folder / "semi.csv").write_bytes(lines.encode("latin-1"))
    line = ["train", "classify", "--data", "semi.csv", "--data.options.encoding", "latin-1", "--run", "run", *TINY]
    assert main(line) == 0
    with gzip.open(folder / "packed.csv.gz", "wb") as file:
        file.write(lines.encode("latin-1"))
    table = pyarrow.table({"review": [text for text, _ in rows]})
    with pyarrow.OSFile(str(folder / "rows.arrow"), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    expected = [row["predicted"] for row in cosformer.predict("run", [text for text, _ in rows])]
    probabilities = [row["probability_a"] for row in cosformer.predict("run", [text for text, _ in rows])]
    for name in ("semi.csv", "packed.csv.gz", "rows.arrow"):
        assert main(["predict", "run", name, "-o", "out.jsonl"]) == 0
        found = [json.loads(row) for row in (folder / "out.jsonl").read_text().splitlines()]
        assert [row["review"] for row in found] == [text for text, _ in rows], name
        assert [row["predicted"] for row in found] == expected
        assert [row["probability_a"] for row in found] == pytest.approx(probabilities, abs=1e-6)


@pytest.mark.parametrize("ending", ["arrow", "txt", "csv.gz"])
def test_predict_refuses_to_write_what_it_only_reads(ending: str, folder: Path, capsys) -> None:
    assert main(["predict", str(STDLIB_MODEL), "x.txt", "-o", f"out.{ending}"]) == 2
    assert f"out.{ending}: its ending says no form; wanted .csv, .tsv" in capsys.readouterr().err


def test_the_second_text_of_a_pair_is_found_as_in_training(folder: Path) -> None:
    write_kinds(folder)
    assert main(["train", "match", "--data", "pairs.jsonl", "--run", "run", *TINY]) == 0
    assert main(["predict", "run", "pairs.jsonl", "-o", "found.jsonl"]) == 0
    named = ["--text", "sentence1", "--second", "sentence2"]
    assert main(["predict", "run", "pairs.jsonl", *named, "-o", "named.jsonl"]) == 0
    assert (folder / "found.jsonl").read_text() == (folder / "named.jsonl").read_text()


def test_confusions_and_the_simple_model_are_recorded_printed_and_in_the_card(folder: Path, capsys) -> None:
    reviews(folder)
    assert main(["train", "classify", "--data", "reviews.csv", "--run", "run", *TINY]) == 0
    result = json.loads((folder / "run" / "result.json").read_text())
    confusion = result["confusion"]["test"]
    assert confusion["classes"] == ["negative", "positive"] and np.sum(confusion["counts"]) == 4
    assert np.trace(confusion["counts"]) / 4 == result["scores"]["test"]["accuracy"]
    simple = result["text_baseline"]["test"]
    assert simple["score"] == 1.0, "one word decides"
    capsys.readouterr()
    assert main(["eval", "run"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["test:", "true", "class,", "predicted", "as", "negative", "positive"] in lines
    for name, counts in zip(confusion["classes"], confusion["counts"], strict=True):
        assert [name, *map(str, counts)] in lines
    assert main(["eval", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"]["confusion"] == confusion
    card = (folder / "run" / "best" / "README.md").read_text()
    assert f"| negative | {confusion['counts'][0][0]} | {confusion['counts'][0][1]} |" in card
    assert "| baseline: TF-IDF and logistic regression |" in card


def test_class_weights_change_the_training_and_need_classes(folder: Path, capsys) -> None:
    lines = [f"film {i},{'good' if i % 4 else 'bad'}" for i in range(40)]
    (folder / "reviews.csv").write_text("\n".join(["review,sentiment", *lines]) + "\n")
    line = ["train", "classify", "--data", "reviews.csv", *TINY]
    losses = []
    for run, more in {"plain": [], "weighted": ["--train.class-weights", "balanced"]}.items():
        assert main([*line, *more, "--train.log-every", "1", "--run", run]) == 0
        first = json.loads((folder / run / "metrics.jsonl").read_text().splitlines()[0])
        losses.append(first["loss"])
    assert losses[0] != losses[1]
    jsonl(folder, "prices.jsonl", [{"text": f"t{i}", "price": 0.5 + i} for i in range(40)])
    assert main(["train", "regress", "--data", "prices.jsonl", "--train.class-weights", "balanced"]) == 2
    assert "rows of task 'regress' do not have one class each" in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_resuming_derives_nothing_again(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    reviews(folder)
    assert main(["train", "classify", "--data", "reviews.csv", "--run", "run", *TINY]) == 0
    before = (folder / "run" / "experiment.json").read_text()

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("derived again")

    monkeypatch.setattr("cosformer.tasks.own_data.own_experiment", never)
    monkeypatch.setattr("cosformer.data.summary.summarize", never)
    assert main(["resume", "run", "--steps", "5", "--quiet"]) == 0
    after = json.loads((folder / "run" / "experiment.json").read_text())
    assert after["train"].pop("steps") == 5
    kept = json.loads(before)
    kept["train"].pop("steps")
    assert after == kept
    reviews(folder, rows=50)
    assert main(["eval", "run"]) == 2
    assert "reviews.csv has changed since this run began" in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["lm", "mlm"])
def test_one_line_trains_on_texts(recipe: str, folder: Path, capsys) -> None:
    (folder / "texts").mkdir()
    for i in range(4):
        (folder / "texts" / f"{i}.txt").write_text("".join(f"line {j} of text {i}\n" for j in range(60)))
    assert main(["train", recipe, "--data", "texts", "--run", "run", *TINY]) == 0
    assert "ending: '.txt'" in capsys.readouterr().err
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["baseline"]["valid"]["name"] == "unigram" and "test" in result["scores"]


def test_long_rows_are_cut_read_in_windows_or_refused(folder: Path, capsys) -> None:
    reviews(folder, longest=200)
    line = ["train", "classify", "--data", "reviews.csv", "--data.options.tokenizer", "bytes", *TINY]
    line += ["--data.length", "32"]
    assert main([*line, "--run", "cut"]) == 0
    assert "1 rows are longer than 32 tokens and are cut there" in capsys.readouterr().err
    assert main([*line, "--run", "windows", "--data.long", "windows"]) == 0
    assert "read in overlapping windows" in capsys.readouterr().err
    cards = {name: (folder / name / "best" / "README.md").read_text() for name in ("cut", "windows")}
    assert "longer rows are cut" in cards["cut"] and "longer rows are read in overlapping windows" in cards["windows"]
    assert main([*line, "--run", "refuse", "--data.long", "refuse"]) == 2
    assert "a row of 206 tokens, more than data.length=32" in capsys.readouterr().err
    assert not (folder / "refuse").exists()


def test_an_encoder_of_own_texts_is_fine_tuned_on_an_own_table(folder: Path) -> None:
    reviews(folder)
    (folder / "book.txt").write_text("".join(f"a film like number {i}\n" for i in range(100)))
    assert (
        main(["train", "mlm", "--data", "book.txt", "--data.options.tokenizer", "bpe:270", "--run", "mlm", *TINY]) == 0
    )
    sizes = [
        "--model.num-hidden-layers",
        "--model.hidden-size",
        "--model.num-attention-heads",
        "--model.intermediate-size",
    ]
    words = [word for i, word in enumerate(TINY) if word not in sizes and (i == 0 or TINY[i - 1] not in sizes)]
    assert main(["train", "classify", "--data", "reviews.csv", "--start", "mlm", "--run", "run", *words]) == 0
    found = load_experiment(folder / "run")
    assert found.start == "mlm" and Path(str(found.data.options["tokenizer"])) == Path("mlm/best")


def jsonl(folder: Path, name: str, rows: list[dict]) -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_kinds(folder: Path) -> None:
    """One small file for each recipe of tables."""
    words = [
        f"{w} {i}"
        for i, w in enumerate(["red", "green", "blue", "dark", "light", "warm", "cold", "new", "old", "big"] * 4)
    ]
    jsonl(folder, "prices.jsonl", [{"text": w, "price": 1_000.5 + i} for i, w in enumerate(words)])
    jsonl(folder, "pairs.jsonl", [{"sentence1": w, "sentence2": w[::-1], "label": i % 2} for i, w in enumerate(words)])
    jsonl(folder, "similar.jsonl", [{"sentence1": w, "sentence2": w[:3], "score": i / 40} for i, w in enumerate(words)])
    jsonl(folder, "topics.jsonl", [{"text": w, "labels": ["a", "b", "c"][: i % 4]} for i, w in enumerate(words)])
    jsonl(folder, "tags.jsonl", [{"words": w.split(), "tags": ["W", "N"]} for w in words])
    jsonl(folder, "turn.jsonl", [{"source": w, "target": w[::-1]} for w in words])


@pytest.mark.parametrize(
    ("recipe", "file", "more", "task", "score", "baseline"),
    [
        ("regress", "prices.jsonl", ["--data.options.label", "price"], "regress", "mae", "median of training"),
        ("match", "pairs.jsonl", [], "match", "accuracy", "majority class"),
        ("match", "similar.jsonl", ["--data.options.target", "number"], "similarity", "mae", "median of training"),
        ("classify", "topics.jsonl", ["--data.options.target", "classes"], "multilabel", "f1", "most frequent classes"),
        ("tag", "tags.jsonl", [], "tag", "accuracy", "most frequent tag"),
        ("seq2seq", "turn.jsonl", [], "seq2seq", "loss", "unigram"),
    ],
)  # fmt: skip
def test_one_line_trains_each_kind_of_table(
    recipe: str, file: str, more: list[str], task: str, score: str, baseline: str, folder: Path, capsys
) -> None:
    write_kinds(folder)
    assert main(["train", recipe, "--data", file, "--run", "run", *more, *TINY]) == 0, capsys.readouterr().err
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["task"] == task and result["score"] == score and result["recipe"] == recipe
    assert result["baseline"]["valid"]["name"] == baseline
    for found in result["scores"].values():
        assert score in found and found["error"] >= 0
    config = AutoConfig.from_pretrained(folder / "run" / "best")
    if task in ("regress", "score"):
        assert config.id2label == {0: "price" if task == "regress" else "score"}
    capsys.readouterr()
    assert main(["eval", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"valid", "test"}


@pytest.mark.parametrize(
    ("recipe", "rows", "said"),
    [
        ("regress", [{"text": "a", "score": "many"}] * 9, "line 1: column 'score' holds 'many', which is no number"),
        ("regress", [{"text": "a", "score": float("nan")}] * 9, "x.jsonl, line 1: no number in column 'score'"),
        ("regress", [{"text": "a", "score": 2}] * 9, "every row has the number 2; there is nothing to learn"),
        ("tag", [{"words": "a b", "tags": "X"}] * 9, "x.jsonl, line 1: 2 words and 1 tags; each word needs one"),
        ("tag", [{"words": "a", "tags": None}] * 9, "x.jsonl, line 1: no tags in column 'tags'"),
        ("seq2seq", [{"source": "a", "target": ""}] * 9, "x.jsonl, line 1: no text in column 'target'"),
        ("match", [{"text": "a", "label": 1}] * 9, "which column is the second? It has text, label"),
    ],
)  # fmt: skip
def test_each_kind_refuses_what_it_cannot_learn(recipe: str, rows: list[dict], said: str, folder: Path, capsys) -> None:
    jsonl(folder, "x.jsonl", rows)
    assert main(["train", recipe, "--data", "x.jsonl"]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1 and not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "classify trains on your own files: give --data PATH"),
        (["--train.steps", "3"], "classify trains on your own files: give --data PATH"),
        (["--data", "gone.csv"], "gone.csv does not exist"),
        (["--data", "*.tsv"], "no file matches '*.tsv'"),
        (["--data", "reviews.csv", "--data.options.text", "reviw"], "unknown column 'reviw'; did you mean 'review'?"),
        (["--data", "reviews.csv", "--data.options.txt", "x"], "data set 'table' has no option 'txt'"),
        (["--data", "empty.csv"], "empty.csv is empty"),
        (["--data", "header.csv"], "header.csv holds a header and no rows"),
        (["--data", "one.csv"], "one.csv: every row has the label 'a'; classification needs at least two classes"),
        (["--data", "missing.csv"], "missing.csv, line 3: no label in column 'label'"),
        (["--data", "ragged.csv"], "ragged.csv, line 3: 3 columns, not the 2 of the header"),
        (["--data", "latin.csv"], "latin.csv, line 3: byte 3 (0xe9) is not valid utf-8"),
        (["--data", "parts"], "test.csv, line 2: the label 'c' of this test row does not occur in the training rows"),
        (["--data", "endless.csv"], "endless.csv, line 2: longer than 10,000,000 bytes, the most"),
        (["--data", "headless.fa"], "headless.fa, line 1: expected a header that begins with > (FASTA) or @ (FASTQ)"),
        (["--data", "labels.npz"], "labels.npz: 30 rows and labels of shape [29]; each row needs one"),
        (["--data", "gap.csv", "--data.options.series", "room", "--data.options.label", "kind"],
         "gap.csv, line 9: column 'temp' holds 'nan'; readings must be finite"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_writes_nothing(words: list[str], said: str, folder: Path, capsys) -> None:
    reviews(folder)
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("text,label\n")
    (folder / "one.csv").write_text("text,label\n" + "t,a\n" * 9)
    (folder / "missing.csv").write_text("text,label\nt,a\nt,\n" + "t,b\n" * 9)
    (folder / "ragged.csv").write_text("text,label\nt,a\nt,b,c\n")
    (folder / "latin.csv").write_bytes("text,label\nt,a\ncafé,b\n".encode("latin-1"))
    (folder / "parts").mkdir()
    (folder / "parts" / "train.csv").write_text("text,label\n" + "t,a\nt,b\n" * 9)
    (folder / "parts" / "test.csv").write_text("text,label\nt,c\n")
    if "endless.csv" in words:
        (folder / "endless.csv").write_bytes(b"text,label\n" + b"x" * 50_000_000 + b",a\n")
    (folder / "headless.fa").write_text("ACGT\n>a label=x\nACGT\n")
    np.savez(folder / "labels.npz", rows=np.zeros((30, 4), int), labels=np.zeros(29, int))
    readings = [f"{t},{r},{'nan' if (t, r) == (7, 0) else t},{r % 2}" for r in range(20) for t in range(10)]
    (folder / "gap.csv").write_text("\n".join(["time,room,temp,kind", *readings]) + "\n")
    assert main(["train", "classify", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1 and not (folder / "runs").exists()


def test_rows_that_come_again_across_splits_are_warned_of(folder: Path, capsys) -> None:
    for split, rows in (("train", range(20)), ("test", range(18, 22))):
        (folder / f"{split}.csv").write_text("text,label\n" + "".join(f"film {i},{i % 2}\n" for i in rows))
    assert main(["train", "classify", "--data", "t*.csv", "--run", "run", *TINY]) == 0
    assert "warning: 2 rows of valid or test whose text is in train too" in capsys.readouterr().err


def test_a_report_on_own_data_is_about_own_data(folder: Path, capsys) -> None:
    """No paper to compare with, no folder of this machine, no row of the data; a score for every task."""
    (folder / "private.csv").write_text("text,score\n" + "".join(f"secret film {i},{i}\n" for i in range(40)))
    line = ["train", "regress", "--data", str(folder / "private.csv")]
    for seed in ("0", "1"):
        assert main([*line, *TINY, "--train.seed", seed, "--run", f"runs/{seed}"]) == 0
    assert main(["report", "runs", "-o", "page.html"]) == 0
    page, card = (folder / "page.html").read_text(), (folder / "runs/0/best/README.md").read_text()
    for text in (page, card):
        assert (
            "private.csv" in text and str(folder) not in text and "secret" not in text and "paper" not in text.lower()
        )
    assert "mean absolute error" in page and "average" not in page and "200 updates" not in page
    capsys.readouterr()
    assert main(["runs"]) == 0 and "mean absolute error" in capsys.readouterr().out
    assert main(["report", "gone", "-o", "other.html"]) == 1


def test_help_and_list_know_the_general_recipes(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "classify", "--help"])
    assert "--data PATH" in capsys.readouterr().out
    assert main(["train"]) == 2
    assert "Takes --data PATH." in capsys.readouterr().out
    assert main(["train", "clasify"]) == 2
    assert "did you mean 'classify'?" in capsys.readouterr().err


def write_sequences(folder: Path) -> None:
    """One small file for each kind of sequence that is no text."""
    rng = np.random.default_rng(0)
    letters = ["".join(rng.choice(list("ACGT"), 20)) for _ in range(40)]
    (folder / "genes.fa").write_text("".join(f">g{i} label={'ab'[i % 2]}\n{row}\n" for i, row in enumerate(letters)))
    np.save(folder / "events.npy", rng.integers(0, 9, (40, 12)))
    np.save(folder / "events.labels.npy", np.arange(40) % 3)
    np.save(folder / "sensor.npy", rng.standard_normal((40, 24, 2)))
    np.save(folder / "sensor.labels.npy", np.linspace(0, 5, 40))
    rows = [f"{t},{r},{20 + t % 7 + r},{'warm' if r % 2 else 'cold'}" for r in range(20) for t in range(24)]
    (folder / "rooms.csv").write_text("\n".join(["time,room,temp,kind", *rows]) + "\n")


@pytest.mark.parametrize(
    ("recipe", "file", "more", "said", "columns"),
    [
        ("lm", "genes.fa", [], "alphabet: 'dna'", ["id", "sequence", "log_likelihood", "tokens", "bits_per_token"]),
        ("mlm", "events.npy", [], "num_ids: 9", None),
        ("classify", "genes.fa", [], "sequences: train 32, valid 4, test 4",
         ["id", "sequence", "predicted", "probability_a", "probability_b"]),
        ("classify", "events.npy", [], "3 classes in training",
         ["row", "predicted", *(f"probability_{i}" for i in range(3))]),
        ("regress", "sensor.npy", [], "numbers in training: 0 to", ["row", "predicted"]),
        ("classify", "rooms.csv", ["series", "room", "label", "kind"], "channels: 'temp'",
         ["room", "predicted", "probability_cold", "probability_warm"]),
        ("forecast", "sensor.npy", [], "800 training steps",
         ["row", *(f"channel{c}_{s}" for s in (1, 2) for c in (1, 2))]),
        ("forecast", "rooms.csv", ["series", "room"], "time: column 'time'", ["room", "temp_1", "temp_2"]),
    ],
)  # fmt: skip
def test_sequences_and_series_are_trained_scored_and_predicted(
    recipe: str, file: str, more: list[str], said: str, columns: list[str] | None, folder: Path, capsys
) -> None:
    write_sequences(folder)
    options = [f"--data.options.{word}" if i % 2 == 0 else word for i, word in enumerate(more)]
    assert main(["train", recipe, "--data", file, "--run", "run", *options, *TINY]) == 0, capsys.readouterr().err
    assert said in capsys.readouterr().err
    result = json.loads((folder / "run" / "result.json").read_text())
    assert main(["eval", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == result["scores"].keys()
    if file == "events.npy":
        tokenizer = AutoTokenizer.from_pretrained(folder / "run" / "best")
        ids = tokenizer("3 0 8").input_ids
        assert [i for i in ids if i < 9] == [3, 0, 8] and tokenizer.decode(ids, skip_special_tokens=True) == "3 0 8"
    if columns is None:
        return
    steps = ["--steps", "2"] if recipe == "forecast" else []
    assert main(["predict", "run", file, "-o", "out.jsonl", *steps]) == 0
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len(rows) == (20 if file == "rooms.csv" else 40) and list(rows[0]) == columns
    if recipe == "forecast":
        # what the model itself says, from the last steps of the series
        from cosformer.prediction.readers import RunReader
        from cosformer.train.run import load_model

        model = load_model(folder / "run")
        series = np.load(folder / "sensor.npy")[3] if file == "sensor.npy" else [[20 + t % 7 + 3] for t in range(24)]
        expected = model.forecast(torch.tensor(np.array([series[-23:]], np.float32)), 2)[0].flatten().tolist()
        assert list(rows[3].values())[1:] == pytest.approx(expected, rel=1e-4)
        assert RunReader(folder / "run", model.config).series is not None


def test_an_encoder_of_own_sequences_is_fine_tuned(folder: Path) -> None:
    write_sequences(folder)
    np.save(folder / "events.npy", np.minimum(np.load(folder / "events.npy"), 5))
    np.save(folder / "more.npy", np.arange(400).reshape(20, 20) % 9)
    assert main(["train", "mlm", "--data", "more.npy", "--run", "mlm", *TINY]) == 0
    line = [
        "train",
        "classify",
        "--data",
        "events.npy",
        "--start",
        "mlm",
        "--run",
        "run",
        "--train.steps",
        "2",
        "--quiet",
    ]
    assert main(line) == 0
    assert load_experiment(folder / "run").data.options["num_ids"] == 9, "an id means what it meant to the encoder"
