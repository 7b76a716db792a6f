"""A name that is not there: an error at once, with the nearest that is, and no hub asked."""

import pytest

from cosformer import build_attention
from cosformer.cli import COMMANDS, main
from cosformer.data import load_dataset
from cosformer.suggest import _edits, check_model_path, nearest
from studies.cosformer2022.__main__ import main as study


def test_every_table_suggests_the_nearest_name(capsys):
    with pytest.raises(ValueError, match="unknown attention 'cosfomer'; did you mean 'cosformer'"):
        build_attention("cosfomer", num_heads=1, head_dim=4, max_len=8, causal=False)
    with pytest.raises(ValueError, match="unknown data set 'wikitxt2'; did you mean 'wikitext2'"):
        load_dataset("wikitxt2")
    assert main(["trian"]) == 2
    assert "unknown command 'trian'; did you mean 'train'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        study(["tabel2"])
    assert "unknown target 'tabel2'; did you mean 'table2'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("exprot", "export"),
        ("forecast", None),
        ("evaluate", "eval"),
        ("training", "train"),
        ("lin", "linearize"),
        ("rn", None),
    ],
)
def test_only_typos_and_beginnings_are_suggested(name, near):
    assert nearest(name, COMMANDS) == near


@pytest.mark.parametrize(
    ("a", "b", "edits"),
    [
        ("train", "train", 0),
        ("trian", "train", 1),
        ("trai", "train", 1),
        ("brain", "train", 1),
        ("", "abc", 3),
        ("export", "report", 2),
    ],
)
def test_edits_are_counted_as_by_hand(a, b, edits):
    assert _edits(a, b) == _edits(b, a) == edits


@pytest.mark.parametrize("command", ["generate", "visualize", "convert", "eval"])
def test_a_mistyped_path_is_an_error_at_once(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "night").mkdir(parents=True)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a hub was asked"))
    rest = {"generate": ["--prompt", "a"], "visualize": ["--text", "a"], "convert": ["out"], "eval": []}[command]
    assert main([command, "runs/nigth", *rest]) == 2
    said = capsys.readouterr().err
    assert "runs/nigth" in said and "did you mean runs/night?" in said


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2"])
def test_names_on_a_hub_pass(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_model_path(name)


def test_a_file_is_no_model(tmp_path):
    (tmp_path / "model.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"model\.json is a file; a model is a folder"):
        check_model_path(str(tmp_path / "model.json"))


@pytest.mark.parametrize("text", ["[1, 2]", "", "[" * 100_000, '{"model_type": [1]}'])
@pytest.mark.parametrize(
    "words",
    [
        ["convert", "MODEL", "OUT"],
        ["export", "MODEL", "OUT"],
        ["compare", "MODEL", "--text", "TEXT"],
        ["linearize", "MODEL", "OUT", "--text", "TEXT"],
        ["generate", "MODEL", "--prompt", "x"],
        ["predict", "MODEL", "TEXT", "-o", "OUT"],
        ["train", "classify", "--data", "TEXT", "--start", "MODEL", "--run", "OUT"],
    ],
    ids=lambda words: words[0],
)
def test_a_folder_whose_config_is_none_is_named(words, text, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(text)
    (tmp_path / "text.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 20)
    places = {"MODEL": "model", "OUT": "out.csv", "TEXT": "text.csv"}
    assert main([str(tmp_path / places[word]) if word in places else word for word in words]) in (1, 2)
    said = capsys.readouterr().err
    assert str(tmp_path / "model") in said and "Traceback" not in said
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("name", ["./gpt2", "/nowhere/gpt2", "models/", "a/b/c", "here/gpt2", "runs/x"])
def test_names_that_look_like_paths_must_be_there(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        check_model_path(name)
