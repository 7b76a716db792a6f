"""The page "Your own data": every command works on small files; the scripts in examples/ run."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cosformer.cli import main

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own_data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
TINY = ["--train.steps", "3", "--train.batch", "4", "--train.eval-every", "3", "--train.save-every", "3", "--quiet"]
SIZES = ["--model.num-hidden-layers", "1", "--model.hidden-size", "16", "--model.num-attention-heads", "2"]
SIZES += ["--model.intermediate-size", "16"]


def write_files(folder: Path) -> None:
    def jsonl(name: str, rows: list) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    texts = [f"{'a fine' if i % 2 else 'an awful'} film number {i}" for i in range(40)]
    (folder / "reviews.csv").write_text(
        "review,sentiment\n" + "".join(f"{t},{'negpos'[i % 2 * 3 :][:3]}\n" for i, t in enumerate(texts))
    )
    (folder / "new.csv").write_text("review\n" + "\n".join(texts[:5]) + "\n")
    (folder / "new.txt").write_text("\n".join(texts[:5]) + "\n")
    (folder / "books").mkdir()
    for i in range(3):
        (folder / "books" / f"{i}.txt").write_text("".join(f"line {j} of book {i}\n" for j in range(60)))
    pairs = [{"sentence1": t, "sentence2": t[:6], "score": i / 40} for i, t in enumerate(texts)]
    jsonl("pairs.jsonl", pairs)
    jsonl("newpairs.jsonl", [{key: row[key] for key in ("sentence1", "sentence2")} for row in pairs[:5]])
    tags = [{"words": t.split(), "tags": ["X" if word.isdigit() else "W" for word in t.split()]} for t in texts]
    jsonl("tags.jsonl", tags)
    jsonl("newtags.jsonl", [{"words": row["words"]} for row in tags[:5]])
    letters = ["".join(row) for row in np.random.default_rng(0).choice(list("ACGT"), (40, 20))]
    (folder / "genes.fa").write_text("".join(f">g{i} label={'ab'[i % 2]}\n{row}\n" for i, row in enumerate(letters)))
    (folder / "newgenes.fa").write_text("".join(f">n{i}\n{row}\n" for i, row in enumerate(letters[:5])))
    rows = [f"{t},{r},{20 + t % 7 + r},{t % 3}" for r in range(5) for t in range(40)]
    (folder / "rooms.csv").write_text("\n".join(["time,room,temp,humidity", *rows]) + "\n")
    np.save(folder / "sensor.npy", np.random.default_rng(0).standard_normal((20, 20, 2)))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    write_files(tmp_path)
    return tmp_path


def test_the_page_shows_each_kind() -> None:
    assert len(BLOCKS) == 7 and len(PYTHON) == 1
    for words in ("train classify", "train lm", "train match", "train tag", "genes.fa", "train forecast", "--start"):
        assert any(words in block for block in BLOCKS), words


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("block", BLOCKS, ids=[block.split("--run")[0].strip() for block in BLOCKS])
def test_every_line_of_the_page_works(block: str, folder: Path, capsys) -> None:
    for line in block.strip().splitlines():
        words = shlex.split(line)[1:]
        if words[0] == "train":
            words += TINY + ([] if "--start" in words else SIZES)
        if words[0] == "predict" and "runs/reviews" in line and not Path("runs/reviews").exists():
            pytest.fail("the page predicts with a run that it has not trained")
        assert main(words) == 0, f"{line}\n{capsys.readouterr().err}"
        if words[0] == "predict":
            out = Path(words[words.index("-o") + 1])
            lines = out.read_text().splitlines()
            assert len(lines) == 5 + (out.suffix == ".csv"), line


def test_the_python_of_the_page_runs() -> None:
    for code in PYTHON:
        found: dict = {}
        exec(code, found)
        assert found["following"].shape == (8, 24, 3) and found["hidden"].shape == (8, 100, 32)


def script(name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *words], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "out"),
    [
        ("classify_texts", "texts.csv", "classifier"),
        ("tag_words", "tags.jsonl", "tagger"),
        ("language_model", "books/0.txt", "language_model"),
        ("forecast_series", "sensor.npy", "forecaster"),
    ],
)
def test_the_scripts_run(name: str, file: str, out: str, folder: Path) -> None:
    (folder / "texts.csv").write_text((folder / "reviews.csv").read_text().replace("review,sentiment", "text,label"))
    assert script(name, file, "3")
    assert (folder / out / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_script_of_the_encoder_runs(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "awful", "film", "number"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained("bert")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained("bert")
    (folder / "texts.csv").write_text((folder / "reviews.csv").read_text().replace("review,sentiment", "text,label"))
    assert "eval_accuracy" in script("encoder_made_linear", "bert", "texts.csv", "3")
    assert json.loads((folder / "tuned" / "config.json").read_text())["model_type"] == "cosformer_bert"
    shutil.rmtree(folder / "tuned")
