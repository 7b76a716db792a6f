"""Fine-tuning from transformers' encoders: their tokenizer, either attention, and more positions."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import CONFIG_MAPPING, AutoModel, BertConfig, BertModel, BertTokenizerFast

from cosformer.cli import main
from cosformer.data.subwords import Subwords
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


PAIR = ["--text", "sentence1", "--second", "sentence2"]
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


@pytest.mark.parametrize("kind", ["bert", "electra", "distilbert", "roberta"])
@pytest.mark.parametrize("attention", ["softmax", "cosformer"])
def test_numbers_and_pairs_start_from_encoders(kind: str, attention: str, folder: Path) -> None:
    """Saved, loaded and used by predict in the units of the labels, with rows of 24 tokens where 12 were trained."""
    if kind != "bert":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}
        config = CONFIG_MAPPING[kind](vocab_size=68, max_position_embeddings=13 if kind == "roberta" else 12, **sizes)
        AutoModel.from_config(config).save_pretrained("bert")
    texts = [f"{'fine' if i % 2 else 'awful'} film {i} {'film ' * (i % 20)}" for i in range(40)]
    rows = [{"sentence1": text, "sentence2": "a film", "score": 5000.0 + i % 2} for i, text in enumerate(texts)]
    for name, change in {"numbers": {}, "classes": {"score": "ab"}}.items():
        given = [row | {key: value[i % 2] for key, value in change.items()} for i, row in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    # what is done -> data, and options of train and of predict
    tries = {
        "regress": ("numbers", ["--data.options.text", "sentence1"], ["--text", "sentence1"]),
        "match": ("classes", ["--data.options.label", "score"], PAIR),
        "similarity": ("numbers", ["--data.options.target", "number"], PAIR),
    }
    for task, (data, options, reading) in tries.items():
        recipe = "match" if task == "similarity" else task
        line = ["train", recipe, "--data", f"{data}.jsonl", "--start", "bert", *options, "--model.attention", attention]
        steps = ["--train.steps", "2", "--train.batch", "4", "--data.length", "24", "--quiet"]
        assert main([*line, *steps, "--run", task]) == 0
        model = load_model(folder / task)
        assert model.config.encoder["model_type"] == ("cosformer_" if attention == "cosformer" else "") + kind
        assert model.model.config.max_position_embeddings == 24 + (kind == "roberta")
        assert main(["predict", task, f"{data}.jsonl", *reading, "-o", f"{task}.jsonl"]) == 0
        found = [json.loads(row)["predicted"] for row in (folder / f"{task}.jsonl").read_text().splitlines()]
        assert len(found) == 40 and all(x in "ab" if task == "match" else abs(x - 5000) < 20 for x in found)


def test_a_run_of_numbers_starts_another(folder: Path, capsys) -> None:
    (folder / "b.csv").write_text("text,score\n" + "".join(f"film {i},{i}\n" for i in range(20)))
    line = ["train", "regress", "--data", "b.csv", "--train.steps", "2", "--quiet", "--model.attention", "softmax"]
    assert main([*line, "--start", "bert", "--run", "one"]) == 0
    assert main([*line, "--start", "one", "--train.lr", "0", "--run", "two"]) == 0
    before, after = (load_model(folder / run).state_dict() for run in ("one", "two"))
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert main([*line, "--start", "one", "--data.length", "24", "--run", "three"]) == 2
    assert "has 12 positions; set data.length to that" in capsys.readouterr().err


def test_a_linearized_encoder_reads_longer_rows(folder: Path) -> None:
    (folder / "text.txt").write_text("\n".join(f"fine film {i}" for i in range(60)))
    sizes = ["--length", "8", "--batch", "2", "--held-out", "2", "--transfer-tokens", "100", "--repair-tokens", "0"]
    assert main(["linearize", "bert", "linear", "--text", "text.txt", "--quiet", *sizes]) == 0
    line = [word if word != "bert" else "linear" for word in LINE]
    assert main([*line, "--run", "run", "--data.length", "24", "--train.lr", "0"]) == 0
    model = load_model(folder / "run")
    assert model.config.attention == "learned" and model.config.learned["max_len"] == 24
    maps = {key: value for key, value in AutoModel.from_pretrained("linear").state_dict().items() if "query" in key}
    assert maps and all(torch.equal(value, model.state_dict()[f"bert.{key}"]) for key, value in maps.items())


def test_a_tokenizer_that_truncates_and_pads_reads_whole_texts(folder: Path) -> None:
    """As sentence-transformers saves its tokenizers: rows end where the data says."""
    tokenizer = Tokenizer.from_file("bert/tokenizer.json")
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save("bert/tokenizer.json")
    ids, lengths = Subwords.load(Path("bert")).encode(["film", "film " * 9])
    assert lengths.tolist() == [1, 9] and len(ids) == 10


def test_what_an_encoder_cannot_start_is_refused(folder: Path, capsys) -> None:
    (folder / "b.csv").write_text("text,score\n" + "".join(f"film {i},{i}\n" for i in range(20)))
    line = [*LINE, "--run", "run"]
    line[1:4] = ["lm", "--data", "b.csv"]
    assert main(line) == 2
    assert "which task 'lm' cannot start from" in capsys.readouterr().err and not (folder / "run").exists()
    assert main([*LINE, "--run", "run", "--model.attention", "performer"]) == 2
    assert "it can keep it, or run cosformer or softmax" in capsys.readouterr().err
