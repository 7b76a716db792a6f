"""`cosformer data`: what a user types and what comes back."""

import json
from pathlib import Path

import pytest

from cosformer.cli import main
from cosformer.data import DATASETS, load_dataset


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("COSFORMER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def sst2(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "train.tsv").write_text("sentence\tlabel\nso good \t1\nbad\t0\nworse film\t0\n")
    (folder / "test.tsv").write_text("index\tsentence\n0\twho knows\n")
    return folder


def test_list_names_every_set_and_what_is_prepared(capsys, home: Path) -> None:
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(DATASETS)]] == list(DATASETS)
    assert str(home) in lines[-1] and not any("[prepared" in line for line in lines)
    load_dataset("listops-small", train=2, valid=1, test=1)
    main(["data", "list"])
    prepared = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "[prepared" in line]
    assert prepared == ["listops-small"]


def test_get_from_files_prepares_and_remembers_them(sst2: Path, capsys) -> None:
    assert main(["data", "get", "sst2", "--from", str(sst2), "--set", "max_length=8"]) == 0
    out = capsys.readouterr().out
    assert "train" in out and "3 rows" in out and "without labels" in out and "rows cut: 3" in out
    assert len(load_dataset("sst2").splits["train"]) == 3
    assert main(["data", "show", "sst2", "--rows", "2"]) == 0
    shown = capsys.readouterr().out
    assert (
        "<s>so good</s>" in shown and "label 1 (positive)" in shown and "<s>bad</s>" in shown and "worse" not in shown
    )
    assert "5 to" in shown and "█" in shown
    assert main(["data", "clean", "sst2"]) == 0
    assert main(["data", "show", "sst2"]) == 2
    assert "cosformer data get sst2" in capsys.readouterr().err


def test_generated_sets_are_made_and_written_in_the_official_form(tmp_path: Path, capsys) -> None:
    sizes = [word for s in ("train=3", "valid=2", "test=1") for word in ("--set", s)]
    assert main(["data", "get", "listops", *sizes, "--write", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/basic_train.tsv").read_bytes().count(b"\r\n") == 4
    assert main(["data", "get", "listops", "--from", str(tmp_path / "out")]) == 0
    assert f"path={tmp_path / 'out'}" in capsys.readouterr().out
    assert main(["data", "get", "pathfinder-small", *sizes, "--write", str(tmp_path / "pf")]) == 0
    assert len(list((tmp_path / "pf/curv_baseline/imgs/0").glob("*.png"))) == 6
    assert main(["data", "get", "sst2", "--write", "x"]) == 2
    assert "listops and pathfinder have" in capsys.readouterr().err


def test_images_are_shown_as_a_contact_sheet(tmp_path: Path, capsys) -> None:
    from PIL import Image

    sizes = [word for s in ("train=20", "valid=1", "test=1") for word in ("--set", s)]
    assert main(["data", "show", "pathfinder-small", *sizes]) == 0
    assert "contact sheet of the first images: pathfinder-small.png" in capsys.readouterr().out
    sheet = Image.open(tmp_path / "pathfinder-small.png")
    assert sheet.size == ((12 * 33 + 1) * 3, (8 * 33 + 1) * 3)
    first = load_dataset("pathfinder-small", train=20, valid=1, test=1).splits["train"].tokens[0].reshape(32, 32)
    assert (sheet.resize((397, 265), Image.Resampling.NEAREST).crop((1, 1, 33, 33)).tobytes()) == first.tobytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "nothing"], "unknown data set 'nothing'; known: python"),
        (["get", "sst2", "--set", "colour=red"], "has no option 'colour'; it has: path, tokenizer"),
        (["get", "sst2", "--set", "colour"], "expected OPTION=VALUE"),
        (["get", "sst2", "--from", "nowhere"], "nowhere does not exist"),
        (
            ["show", "listops-small", "--set", "train=1", "--set", "valid=1", "--set", "test=1", "--split", "dev"],
            "has train, valid, test",
        ),
        (["clean", "sst2", "--downloads"], "leave out NAME"),
        (["clean", "nothing"], "unknown data set"),
    ],
)
def test_mistakes_are_told_in_one_line(words: list[str], message: str, capsys) -> None:
    assert main(["data", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("cosformer data: ") and "Traceback" not in error


def test_a_full_disk_is_told_in_one_line(sst2: Path, capsys, monkeypatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["data", "get", "sst2", "--from", str(sst2)]) == 1
    assert "No space left on device; nothing was kept" in capsys.readouterr().err


def test_json_values_become_options(sst2: Path, capsys) -> None:
    shares = json.dumps([34, 33, 33])
    assert main(["data", "get", "sst2", "--from", str(sst2), "--set", f"resplit={shares}"]) == 0
    assert [len(s) for s in load_dataset("sst2", resplit=[34, 33, 33]).splits.values()] == [1, 1, 1]
