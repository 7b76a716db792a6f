"""Fine-tuning from transformers' encoders: their tokenizer, either attention, and more positions."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from cosformer.cli import main
from cosformer.experiment import load_experiment
from cosformer.train.positions import repeated
from cosformer.train.run import load_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "awful", "film", *map(str, range(60))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained("bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=12, **sizes)).save_pretrained("bert")
    rows = [f"{'fine' if i % 2 else 'awful'} film {i} {'film ' * (i % 20)},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return tmp_path


LINE = [
    "train",
    "classify",
    "--data",
    "a.csv",
    "--start",
    "bert",
    "--train.steps",
    "2",
    "--train.batch",
    "4",
    "--quiet",
]


def test_by_default_an_encoder_keeps_its_attention_and_its_positions(folder: Path) -> None:
    assert main([*LINE, "--run", "run", "--train.save-every", "1"]) == 0
    found = load_experiment(folder / "run")
    assert found.model.attention == "softmax" and found.data.length == 12 and found.train.lr == 5e-5
    model = load_model(folder / "run")
    assert type(model).__name__ == "BertForSequenceClassification" and model.config.id2label == {0: "a", 1: "b"}
    assert main(["resume", "run", "--steps", "3", "--quiet"]) == 0
    assert main(["predict", "run", "a.csv", "-o", "out.csv"]) == 0
    assert len((folder / "out.csv").read_text().splitlines()) == 41


def test_longer_rows_extend_the_positions_and_linear_attention_reads_them(folder: Path) -> None:
    line = [*LINE, "--run", "run", "--data.length", "24", "--model.attention", "cosformer", "--train.lr", "0"]
    assert main(line) == 0
    model = load_model(folder / "run")
    assert model.config.model_type == "cosformer_bert" and model.config.max_position_embeddings == 24
    assert model.config.cosformer_max_len == 24
    trained = BertModel.from_pretrained("bert").embeddings.position_embeddings.weight
    table = model.get_submodule("bert.embeddings.position_embeddings").weight
    assert torch.equal(table, torch.cat((trained, trained))), "the trained positions, again and again"


def test_rows_in_front_of_the_first_position_stay_there() -> None:
    table = torch.arange(5.0)[:, None]  # RoBERTa: two rows, then the positions
    assert repeated(table, 7, first=2).flatten().tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 2]


def test_what_an_encoder_cannot_start_is_refused(folder: Path, capsys) -> None:
    (folder / "b.csv").write_text("text,score\n" + "".join(f"film {i},{i}\n" for i in range(20)))
    line = [*LINE, "--run", "run"]
    line[1:4] = ["regress", "--data", "b.csv"]
    assert main(line) == 2
    assert "which task 'regress' cannot start from" in capsys.readouterr().err and not (folder / "run").exists()
    assert main([*LINE, "--run", "run", "--model.attention", "performer"]) == 2
    assert "it can keep it, or run cosformer or softmax" in capsys.readouterr().err
