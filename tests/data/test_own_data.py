"""Own text files and tables: what is read, how it is split, what is refused and in which words."""

import gzip
import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from cosformer.data import load_dataset
from cosformer.data.cache import clean
from cosformer.data.dataset import Dataset
from cosformer.data.dealing import deal
from cosformer.data.own_files import own_files, split_of
from cosformer.data.summary import summarize
from cosformer.data.vocabulary import Bytes

ROWS = [(f"text number {i}", ("bad", "good")[i % 2]) for i in range(40)]


def csv_of(rows: Any, header: str = "text,label") -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def texts_of(dataset: Dataset, split: str) -> list[str]:
    """The rows of a split as text, without what encloses them."""
    return [
        dataset.vocabulary.decode(row).removeprefix("<s>").removesuffix("</s>") for row in dataset.splits[split].tokens
    ]


def labels_of(dataset: Dataset, split: str) -> list[str]:
    labels, names = dataset.splits[split].labels, dataset.class_names
    assert labels is not None and names is not None
    return [names[i] for i in labels]


# --- tables


def test_every_row_of_a_table_is_in_one_split_with_its_label(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text(csv_of(ROWS))
    found = load_dataset("table", path=str(tmp_path / "reviews.csv"))
    assert found.class_names == ("bad", "good") and found.choices == {"text": "text", "label": "label"}
    pairs = [pair for s in found.splits for pair in zip(texts_of(found, s), labels_of(found, s), strict=True)]
    assert sorted(pairs) == sorted(ROWS)
    assert {name: len(part) for name, part in found.splits.items()} == {"train": 32, "valid": 4, "test": 4}
    assert all(Counter(labels_of(found, s))["bad"] == len(found.splits[s]) / 2 for s in found.splits), "stratified"
    assert summarize(found).rows == {"train": 32, "valid": 4, "test": 4}


def test_all_formats_give_the_same_rows(tmp_path: Path) -> None:
    quoted = [('says "no", twice\nand leaves', "a"), ("naïve; plain", "b"), *ROWS]
    (tmp_path / "a.csv").write_text(
        "text,label\n" + "".join(f'"{t.replace(chr(34), chr(34) * 2)}",{c}\n' for t, c in quoted)
    )
    (tmp_path / "b.csv").write_text(
        "text;label\n" + "".join(f'"{t.replace(chr(34), chr(34) * 2)}";{c}\n' for t, c in quoted)
    )
    lines = "".join(json.dumps({"text": t, "label": c}) + "\n" for t, c in quoted)
    (tmp_path / "c.jsonl").write_text(lines)
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    import datasets

    table = datasets.Dataset.from_dict({"text": [t for t, _ in quoted], "label": [c for _, c in quoted]})
    table.to_parquet(tmp_path / "e.parquet")
    found = [
        load_dataset("table", path=str(tmp_path / name))
        for name in ("a.csv", "b.csv", "c.jsonl", "d.jsonl.gz", "e.parquet")
    ]
    for other in found[1:]:
        for split in found[0].splits:
            assert texts_of(other, split) == texts_of(found[0], split)
            assert labels_of(other, split) == labels_of(found[0], split)


def test_quotation_marks_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f'"so {i}" he said\t{i % 2}\n' for i in range(20)))
    with pytest.raises(ValueError, match=r"a.tsv, line 2: not readable as CSV .*quotes=False"):
        load_dataset("table", path=str(tmp_path / "a.tsv"))
    found = load_dataset("table", path=str(tmp_path / "a.tsv"), quotes=False)
    assert '"so 0" he said' in [text for split in found.splits for text in texts_of(found, split)]


def test_columns_are_found_by_their_usual_names_or_named(tmp_path: Path) -> None:
    rows = [(i, f"t{i}", i % 3, "x") for i in range(30)]
    (tmp_path / "a.csv").write_text(csv_of(rows, "id,Review,Category,other"))
    found = load_dataset("table", path=str(tmp_path / "a.csv"))
    assert found.choices == {"text": "Review", "label": "Category"} and found.class_names == ("0", "1", "2")
    with pytest.raises(ValueError, match=r"a.csv: unknown column 'Reviews'; did you mean 'Review'\?"):
        load_dataset("table", path=str(tmp_path / "a.csv"), text="Reviews")
    (tmp_path / "b.csv").write_text(csv_of(rows, "id,words,kind,other"))
    with pytest.raises(
        ValueError, match=r"b.csv: which column is the text\? It has id, words, kind, other; .*--data.options.text"
    ):
        load_dataset("table", path=str(tmp_path / "b.csv"))
    assert load_dataset("table", path=str(tmp_path / "b.csv"), text="words", label="kind").num_classes == 3
    (tmp_path / "c.csv").write_text(csv_of(ROWS, "words,label"))
    assert load_dataset("table", path=str(tmp_path / "c.csv")).choices["text"] == "words", "the other one of two"


def test_numbers_are_classes_in_their_order_and_names_of_parquet_files_stay(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_of([(f"t{i}", i % 11) for i in range(60)]))
    assert load_dataset("table", path=str(tmp_path / "a.csv")).class_names == tuple(map(str, range(11)))
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict(
        {"text": [f"t{i}" for i in range(20)], "label": [i % 2 for i in range(20)]}, features
    )
    table.to_parquet(tmp_path / "b.parquet")
    assert load_dataset("table", path=str(tmp_path / "b.parquet")).class_names == ("no", "yes")


def test_files_named_after_splits_are_those_splits(tmp_path: Path) -> None:
    for name, rows in {"train": ROWS[:20], "dev": ROWS[20:28], "test": ROWS[28:]}.items():
        (tmp_path / f"{name}.csv").write_text(csv_of(rows))
    for path in (tmp_path, f"{tmp_path}/*.csv"):
        found = load_dataset("table", path=str(path))
        assert texts_of(found, "train") == [text for text, _ in ROWS[:20]]
        assert texts_of(found, "valid") == [text for text, _ in ROWS[20:28]]
        assert texts_of(found, "test") == [text for text, _ in ROWS[28:]]


def test_validation_rows_come_out_of_training_and_never_out_of_the_test_file(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(csv_of(ROWS[:20]))
    (tmp_path / "test.csv").write_text(csv_of(ROWS[20:]))
    found = load_dataset("table", path=str(tmp_path), valid=0.2)
    assert texts_of(found, "test") == [text for text, _ in ROWS[20:]]
    assert len(found.splits["train"]) == 16 and len(found.splits["valid"]) == 4
    assert found.selection_split == "valid"


def test_a_column_may_say_the_split(tmp_path: Path) -> None:
    rows = [(t, c, ("train", "validation", "Test")[i % 3]) for i, (t, c) in enumerate(ROWS)]
    (tmp_path / "a.csv").write_text(csv_of(rows, "text,label,split"))
    found = load_dataset("table", path=str(tmp_path / "a.csv"))
    assert texts_of(found, "valid") == [t for t, _, s in rows if s == "validation"]
    (tmp_path / "b.csv").write_text(csv_of([*rows, ("x", "bad", "later")], "text,label,split"))
    with pytest.raises(ValueError, match=r"b.csv, line 42: column 'split' is 'later'; expected one of train"):
        load_dataset("table", path=str(tmp_path / "b.csv"))


def test_a_group_that_given_splits_tear_apart_is_refused(tmp_path: Path) -> None:
    rows = [f"film {i},{'ab'[i % 2]},{'train' if i < 30 else 'test'},{i // 4}" for i in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label,split,author", *rows]) + "\n")
    with pytest.raises(ValueError, match=r"rows.csv, line 32: the group '7' is in test here and in train at rows.csv"):
        load_dataset("table", path=str(tmp_path / "rows.csv"), group="author")
    assert len(load_dataset("table", path=str(tmp_path / "rows.csv")).splits["test"]) == 10


def test_a_folder_that_datasets_saved_is_read(tmp_path: Path) -> None:
    rows = {"text": [f"film {i}" for i in range(40)], "label": [i % 2 for i in range(40)]}
    made = datasets.Dataset.from_dict(rows).train_test_split(10, shuffle=False)
    made.save_to_disk(tmp_path / "saved")
    found = load_dataset("table", path=str(tmp_path / "saved"))
    assert len(found.splits["test"]) == 10 and len(found.splits["train"]) + len(found.splits["valid"]) == 30


def test_rows_of_a_group_stay_together(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_of([(f"t{i}", i % 2, i // 4) for i in range(80)], "text,label,patient"))
    found = load_dataset("table", path=str(tmp_path / "a.csv"), group="patient")
    where = {int(text[1:]) // 4: split for split in found.splits for text in texts_of(found, split)}
    for split in found.splits:
        assert {where[int(text[1:]) // 4] for text in texts_of(found, split)} == {split}


def test_dealing_is_exact_seeded_and_gives_training_every_class() -> None:
    strata = [i % 5 == 0 for i in range(1000)]
    dealt = deal((0.1, 0.2), 3, groups=range(1000), strata=strata)
    assert Counter(dealt) == {"train": 700, "valid": 100, "test": 200}
    assert 18 <= sum(s for s, d in zip(strata, dealt, strict=True) if d == "valid") <= 22
    assert dealt == deal((0.1, 0.2), 3, groups=range(1000), strata=strata) != deal((0.1, 0.2), 4, groups=range(1000))
    rare = deal((0.4, 0.4), 0, groups=range(12), strata=range(12))
    assert rare == ["train"] * 12, "a class of one row is for training"
    with pytest.raises(ValueError, match=r"valid=0.0, test=0.1: .*valid above 0"):
        deal((0.0, 0.1), 0, groups=range(4))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "", "a.csv is empty"),
        ("a.jsonl", "", "a.jsonl is empty"),
        ("a.csv", "text,label\n", "a.csv holds a header and no rows"),
        ("a.csv", csv_of([("t", "x")] * 9), "every row has the label 'x'; classification needs at least two classes"),
        ("a.csv", csv_of([*ROWS, ("t", "")]), "a.csv, line 42: no label in column 'label'"),
        ("a.jsonl", '{"text": "t", "label": 1}\n{"text": "t"}\n', "a.jsonl, line 2: no label in column 'label'"),
        ("a.jsonl", '{"text": "t", "label": 1}\n{"text"\n', "a.jsonl, line 2: not JSON"),
        ("a.csv", b"text,label\ncaf\xe9,x\n", r"a.csv, line 2: byte 3 \(0xe9\) is not valid utf-8; .*latin-1"),
        ("a.csv", "text,label\na,b,c\n", "a.csv, line 2: 3 columns, not the 2 of the header"),
        ("a.csv", "text,text\na,b\n", "line 1: the column 'text' appears more than once"),
        ("a.csv", "text,label\n" + "x" * 10_000_001 + ",a\n", "a.csv, line 2: longer than 10,000,000 bytes"),
        ("a.csv", csv_of([("t", i) for i in range(50)]), "50 different labels in 50 rows do not look like classes"),
        ("a.csv", csv_of([("t", 0), ("u", 1)]), "of 2 rows none is left for the split 'valid'"),
        ("a.xlsx", "zip", r"a.xlsx is no table; known endings: .csv, .tsv"),
        ("a.parquet", "zip", "a.parquet cannot be read as parquet"),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused_with_its_place(
    name: str, content: str | bytes, said: str, tmp_path: Path, home: Path
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=said):
        load_dataset("table", path=str(tmp_path / name))
    assert not list(home.glob("prepared/table-*"))


def test_a_test_label_that_training_never_saw_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(csv_of(ROWS))
    (tmp_path / "test.csv").write_text(csv_of([("t", "good"), ("t", "neutral")]))
    with pytest.raises(
        ValueError,
        match=r"test.csv, line 3: the label 'neutral' of this test row does not occur in the training rows",
    ):
        load_dataset("table", path=str(tmp_path))


def test_texts_of_training_that_come_again_are_counted(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(csv_of(ROWS))
    (tmp_path / "test.csv").write_text(csv_of([*ROWS[:3], ("new", "good")]))
    assert load_dataset("table", path=str(tmp_path)).notes["rows of valid or test whose text is in train too"] == 3


def test_no_file_no_match_no_table(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file matches '.*/\*\.csv'"):
        load_dataset("table", path=f"{tmp_path}/*.csv")
    with pytest.raises(FileNotFoundError, match=r"gone.csv does not exist"):
        load_dataset("table", path=str(tmp_path / "gone.csv"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "readme.md").write_text("text")
    with pytest.raises(ValueError, match="holds no table; known endings"):
        load_dataset("table", path=str(tmp_path / "folder"))


def test_a_set_of_the_hub_is_fetched_once_with_its_splits_and_classes(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "fine"])}
    )
    asked: list[tuple] = []

    def load(*name: str | None) -> datasets.DatasetDict:
        asked.append(name)
        rows = {"text": [f"film {i}" for i in range(20)], "label": [i % 2 for i in range(20)]}
        made = datasets.Dataset.from_dict(rows, features=features)
        return datasets.DatasetDict({"train": made, "validation": made, "test": made, "unsupervised": made})

    monkeypatch.setattr(datasets, "load_dataset", load)
    path = "hub:someone/films:small"
    for _ in range(2):
        names = [file.name for file in own_files(path)]
    assert names == ["test.parquet", "train.parquet", "validation.parquet"]
    assert asked == [("someone/films", "small")], "fetched once"
    monkeypatch.undo()
    monkeypatch.setenv("COSFORMER_HOME", str(home))
    found = load_dataset("table", path=path)
    assert found.class_names == ("bad", "fine") and {k: len(s) for k, s in found.splits.items()} == dict.fromkeys(
        ("train", "valid", "test"), 20
    )
    assert clean(None, downloads=True) > 0 and not list((home / "downloads").glob("hub-*"))


def test_a_set_of_the_hub_that_cannot_be_fetched(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*name: str | None) -> None:
        raise ConnectionError("Couldn't reach 'someone/films' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(FileNotFoundError, match=r"hub:someone/films cannot be loaded from the hub \(Couldn't reach"):
        load_dataset("table", path="hub:someone/films")
    monkeypatch.setattr(datasets, "load_dataset", lambda *name: {"extra": None})
    with pytest.raises(ValueError, match="has the splits extra, and none for training, validation or test"):
        load_dataset("table", path="hub:someone/films")
    assert not list((home / "downloads").glob("hub-*"))


def test_a_changed_file_is_refused_where_its_hash_was_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_of(ROWS))
    found = load_dataset("table", path=str(tmp_path / "a.csv"))
    kept = {"path": str(tmp_path / "a.csv"), "sha256": found.options["sha256"]}
    assert load_dataset("table", **kept).folder == found.folder, "prepared once"
    (tmp_path / "a.csv").write_text(csv_of(ROWS[1:]))
    with pytest.raises(ValueError, match=r"a.csv has changed since this run began"):
        load_dataset("table", **kept)


# --- texts


def stream(dataset: Dataset, split: str) -> str:
    return dataset.vocabulary.decode(dataset.splits[split].tokens.flat)


def test_a_folder_of_texts_is_read_with_all_its_folders(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "b.txt.xz").write_bytes(lzma.compress("zwei\nnaïve\n".encode()))
    (folder / "a.txt").write_text("eins\n" * 300)
    (folder / "notes.md").write_text("no\n")
    (folder / ".hidden.txt").write_text("no\n")
    found = load_dataset("texts", path=str(folder))
    whole = "".join(stream(found, split) for split in found.splits)
    assert whole.count("eins\n") == 300 and whole.count("zwei\nnaïve\n</s>") == 1 and "no" not in whole
    assert whole.count("</s>") == 2 and isinstance(found.vocabulary, Bytes)
    assert found.choices == {"ending": ".txt"} and found.selection_split == "valid"


def test_one_file_is_dealt_in_stretches_of_lines(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("".join(f"line {i}\n" for i in range(1000)))
    found = load_dataset("texts", path=str(tmp_path / "book.txt"), valid=0.1, test=0.2)
    lines = {split: stream(found, split).replace("</s>", "").splitlines() for split in found.splits}
    assert sorted(line for part in lines.values() for line in part) == sorted(f"line {i}" for i in range(1000))
    assert 80 <= len(lines["valid"]) <= 120 and 180 <= len(lines["test"]) <= 220
    neighbours = sum(int(b[5:]) - int(a[5:]) == 1 for a, b in zip(lines["valid"], lines["valid"][1:], strict=False))
    assert neighbours > 80, "stretches, not single lines"


def test_text_files_named_after_splits_are_those_splits(tmp_path: Path) -> None:
    for name in ("train-1", "train-2", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n")
    found = load_dataset("texts", path=str(tmp_path))
    assert stream(found, "train") == "train-1\n</s>train-2\n</s>" and stream(found, "test") == "test\n</s>"


def test_a_bpe_is_learnt_from_the_training_text(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("banana bandana\n" * 50)
    (tmp_path / "valid.txt").write_text("banana\n")
    found = load_dataset("texts", path=str(tmp_path), tokenizer="bpe:280")
    assert found.vocab_size <= 280 and len(found.splits["valid"].tokens.flat) < len("banana\n")
    assert stream(found, "valid") == "banana\n</s>"


def test_endings_are_chosen_or_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1\n" * 40)
    assert load_dataset("texts", path=str(folder)).choices == {"ending": ".py"}
    (folder / "b.md").write_text("# title\n" * 40)
    with pytest.raises(ValueError, match=r"files of several kinds \(1 .py, 1 .md\); choose one with the option ending"):
        load_dataset("texts", path=str(folder))
    assert "title" in stream(load_dataset("texts", path=str(folder), ending="md"), "train")
    (tmp_path / "c.parquet").write_text("PAR1")
    with pytest.raises(ValueError, match=r"c.parquet holds tables \(1 .parquet\); language models learn from text"):
        load_dataset("texts", path=str(tmp_path / "c.parquet"))
    with pytest.raises(ValueError, match=r"no file that ends in '.rst', only 1 .py, 1 .md"):
        load_dataset("texts", path=str(folder), ending=".rst")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"ok\n\xff\xfe\n", r"a.txt, line 2: byte 0 \(0xff\) is not valid utf-8"),
        (b"one line alone", "the text has 1 lines, too few to set some aside for validation"),
        (b"x" * 10_000_001, "a.txt, line 1: longer than 10,000,000 bytes"),
    ],
)  # fmt: skip
def test_a_bad_text_is_refused_with_its_place(content: bytes, said: str, tmp_path: Path, home: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=said):
        load_dataset("texts", path=str(tmp_path / "a.txt"))
    assert not list(home.glob("prepared/texts-*"))


def test_other_encodings_are_read_when_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("café\n".encode("latin-1") * 40)
    assert "café" in stream(load_dataset("texts", path=str(tmp_path / "a.txt"), encoding="latin-1"), "train")
    assert "caf\ufffd" in stream(load_dataset("texts", path=str(tmp_path / "a.txt"), errors="replace"), "train")
    with pytest.raises(ValueError, match="encoding='latin-99' is unknown to Python"):
        load_dataset("texts", path=str(tmp_path / "a.txt"), encoding="latin-99")


def test_splits_are_read_from_whole_words_of_a_name() -> None:
    names = ("train.csv", "my-dev.jsonl", "data/test/0.txt", "val_2.txt", "latest.csv", "training notes/x.csv")
    assert [split_of(name) for name in names] == ["train", "valid", "test", "valid", None, "train"]
    assert np.all([split_of("contest.csv") is None, split_of("a/testing/b.csv") == "test"])
