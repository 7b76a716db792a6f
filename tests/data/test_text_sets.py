"""IMDB, AAN, GLUE and Amazon from small files made here, good and bad."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cosformer.data import Dataset, load_dataset
from cosformer.data.amazon import _places
from cosformer.data.encoding import dealt, with_specials
from cosformer.data.vocabulary import Bytes


def _texts(dataset: Dataset, split: str) -> list[str]:
    return [dataset.vocabulary.decode(np.array(row)) for row in dataset.splits[split].tokens]


def _labels(dataset: Dataset, split: str) -> list[int]:
    labels = dataset.splits[split].labels
    assert labels is not None
    return labels.tolist()


REVIEWS = {
    "aclImdb/test/neg/0_2.txt": b"dull<br />film",
    "aclImdb/test/pos/0_9.txt": "très bon".encode(),
    "aclImdb/train/pos/10_8.txt": b"ten",
    "aclImdb/train/pos/2_7.txt": b"two\nsecond line",
    "aclImdb/train/neg/1_1.txt": b"one",
    "aclImdb/train/unsup/0_0.txt": b"no label",
    "aclImdb/README": b"",
}


@pytest.mark.parametrize("form", ["folder", "aclImdb_v1.tar.gz"])
def test_imdb_as_bytes_and_for_fine_tuning(form: str, pack: Callable, tmp_path: Path) -> None:
    path = str(pack(tmp_path / form, REVIEWS))
    dataset = load_dataset("text", path=path, max_length=8)
    assert dataset.splits["train"].tokens[0].tolist() == [b + 1 for b in b"one"]
    assert _texts(dataset, "train") == ["one", "two\nseco", "ten"] and _labels(dataset, "train") == [0, 1, 1]
    assert _texts(dataset, "test") == ["dull<br ", "très bo"] and dataset.notes["rows cut"] == 3
    assert (dataset.vocab_size, dataset.pad_id, dataset.selection_split) == (257, 0, "test")
    tuned = load_dataset("imdb", path=path, max_length=12)
    assert _texts(tuned, "train") == ["<s>one</s>", "<s>two</s>", "<s>ten</s>"]
    assert _texts(tuned, "test") == ["<s>dull<br /></s>", "<s>très bon</s>"] and tuned.vocab_size == 260


@pytest.mark.parametrize(("tokenizer", "first"), [("bpe:270", "<s>One, ONE</s>"), ("bpe-lower:270", "<s>one, one</s>")])
def test_a_bpe_is_learnt_from_the_texts_of_the_train_split(
    tokenizer: str, first: str, pack: Callable, tmp_path: Path
) -> None:
    train = {"aclImdb/train/neg/1_1.txt": b"One, ONE"}
    path = str(pack(tmp_path / "folder", REVIEWS | train))
    dataset = load_dataset("imdb", path=path, tokenizer=tokenizer, max_length=12)
    assert _texts(dataset, "train") == [first, "<s>two</s>", "<s>ten</s>"]
    assert _texts(dataset, "test")[0] == "<s>dull<br /></s>"  # in letters and bytes that no merge has seen
    assert dataset.splits["train"].tokens.lengths[0] < 2 + len("One, ONE"), "no merge was learnt"


def test_a_bpe_needs_a_train_split(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nfine\t1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'bpe:300' is learnt from the train split, and 'sst2' has none here"):
        load_dataset("sst2", path=str(tmp_path), tokenizer="bpe:300")


def test_imdb_without_reviews_or_with_bad_bytes_is_refused(pack: Callable, tmp_path: Path) -> None:
    folder = pack(tmp_path / "folder", REVIEWS) / "aclImdb"
    (folder / "train/neg/1_1.txt").write_bytes(b"b\xffd")
    assert load_dataset("text", path=str(folder)).splits["train"].tokens[0].tolist() == [99, 256, 101]
    with pytest.raises(ValueError, match=r"train review 0: byte 1 \(0xff\) is not valid UTF-8; .*errors=replace"):
        load_dataset("imdb", path=str(folder))
    assert _texts(load_dataset("imdb", path=str(folder), errors="replace"), "train")[0] == "<s>b\ufffdd</s>"
    for file in (folder / "test").rglob("*.txt"):
        file.unlink()
    with pytest.raises(ValueError, match="holds no reviews named test/pos"):
        load_dataset("text", path=str(folder))


def test_aan_pairs(tmp_path: Path) -> None:
    (tmp_path / "new_aan_pairs.train.tsv").write_bytes(b"1.0\tA\tB\tb'first'\tb'sec\xffond'\n0.0\tC\tD\t\"x\"\ty\n")
    (tmp_path / "new_aan_pairs.eval.tsv").write_bytes(b"0\tA\tB\tone\ttwo\r\n")
    dataset = load_dataset("retrieval", path=str(tmp_path), max_length=6)
    train = dataset.splits["train"]
    assert train.second is not None and _labels(dataset, "train") == [1, 0]
    assert _texts(dataset, "train") == ["b'firs", '"x"']
    assert train.second[0].tolist() == [b + 1 for b in b"b'sec\xff"] and train.second[1].tolist() == [ord("y") + 1]
    assert dataset.splits["valid"].second[0].tolist() == [b + 1 for b in b"two"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1.0\tA\tB\tone\n", "line 1: 4 columns, not 5"),
        (b"2.0\tA\tB\tone\ttwo\n", "line 1: label '2.0' is not 0 or 1"),
    ],
)
def test_bad_aan_rows_are_named(line: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "new_aan_pairs.train.tsv").write_bytes(line)
    with pytest.raises(ValueError, match=f"new_aan_pairs.train.tsv, {message}"):
        load_dataset("retrieval", path=str(tmp_path))


QQP_HEAD = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"


def test_qqp_from_glue_drops_odd_rows_with_a_count(pack: Callable, tmp_path: Path) -> None:
    files = {
        "QQP/train.tsv": QQP_HEAD + '1\t2\t3\tWhy "so"?\tHow?\t1\n1\t2\t3\ttab\there\n4\t5\t6\tA\tB\t0\n',
        "QQP/dev.tsv": QQP_HEAD + "1\t2\t3\tx\ty\t0\n",
        "QQP/test.tsv": "id\tquestion1\tquestion2\n0\tp\tq\n",
        "QQP/original/train.tsv": "not\tthis\n",
    }
    dataset = load_dataset("qqp", path=str(pack(tmp_path / "q.zip", files)))
    assert _texts(dataset, "train") == ['<s>Why "so"?</s></s>How?</s>', "<s>A</s></s>B</s>"]
    assert _labels(dataset, "train") == [1, 0] and dataset.notes["rows dropped"] == 1
    assert list(dataset.splits) == ["train", "valid", "test"] and dataset.splits["test"].labels is None


def test_qqp_in_four_columns(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_bytes(b'1\t"What is ""it""?"\tPlain "q"\t18\n0\tcaf\xe9?\tb\t19\n')
    with pytest.raises(ValueError, match=r"dev.tsv, line 2: byte 5 \(0xe9\) is not valid UTF-8"):
        load_dataset("qqp", path=str(tmp_path))
    dataset = load_dataset("qqp", path=str(tmp_path), errors="replace")
    assert _texts(dataset, "valid") == ['<s>What is "it"?</s></s>Plain "q"</s>', "<s>caf\ufffd?</s></s>b</s>"]
    assert _labels(dataset, "valid") == [1, 0]


def test_sst2(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nso good \t1\nbad\t0\n")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\twho knows\n")
    dataset = load_dataset("sst2", path=str(tmp_path))
    assert _texts(dataset, "train") == ["<s>so good</s>", "<s>bad</s>"] and _labels(dataset, "train") == [1, 0]
    assert _texts(dataset, "test") == ["<s>who knows</s>"] and dataset.splits["test"].labels is None


def _mnli_tsv(labels: int, rows: list[tuple[str, str, str]]) -> str:
    columns = ["index", "promptID", "pairID", "genre", "p1", "p2", "p3", "p4", "sentence1", "sentence2"]
    head = "\t".join([*columns, *(f"label{i}" for i in range(labels)), "gold_label"])
    body = ["\t".join(["0"] * 8 + [a, b] + ["neutral"] * labels + [label]) for a, b, label in rows]
    return "\n".join([head, *body]) + "\n"


def test_mnli_from_glue_and_from_json_lines(pack: Callable, tmp_path: Path) -> None:
    rows = [("P", "H", "contradiction"), ("Q", "I", "entailment")]
    files = {
        "MNLI/train.tsv": _mnli_tsv(1, rows),
        "MNLI/dev_matched.tsv": _mnli_tsv(5, rows[:1]),
        "MNLI/dev_mismatched.tsv": _mnli_tsv(5, rows[1:]),
    }
    dataset = load_dataset("mnli", path=str(pack(tmp_path / "m.zip", files)))
    assert _texts(dataset, "train") == ["<s>P</s></s>H</s>", "<s>Q</s></s>I</s>"]
    assert [_labels(dataset, s) for s in ("train", "valid", "valid_mismatched")] == [[2, 0], [2], [0]]
    lines = [json.dumps({"premise": a, "hypothesis": b, "label": c}) for a, b, c in rows * 10]
    (tmp_path / "dev_matched.jsonl").write_text("\n".join(lines) + "\n")
    single = load_dataset("mnli", path=str(tmp_path / "dev_matched.jsonl"))
    assert len(single.splits["valid"]) == 20 and single.class_names == ("entailment", "neutral", "contradiction")
    dealt_anew = load_dataset("mnli", path=str(tmp_path / "dev_matched.jsonl"), resplit=[80, 10, 10], seed=1)
    assert {s: len(part) for s, part in dealt_anew.splits.items()} == {"train": 16, "valid": 2, "test": 2}


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        (
            "sst2",
            "train.tsv",
            "text\tlabel\nx\t1\n",
            r"line 1: the columns are \['text', 'label'\], expected \['sentence'\]",
        ),
        ("sst2", "train.tsv", "sentence\tlabel\nx\t1\ny\n", "line 3: 1 columns, not the 2 of the header"),
        ("sst2", "dev.tsv", "sentence\tlabel\nx\t2\n", "line 2: label '2' is none of 0, 1"),
        (
            "mnli",
            "dev_matched.jsonl",
            '{"premise": "a", "label": "neutral"}\n',
            "line 1: has .*expected .'premise', 'hypothesis'",
        ),
        ("mnli", "dev_matched.jsonl", '{"premise": "a"\n', "line 1: not JSON"),
        (
            "mnli",
            "train.jsonl",
            '{"premise": "a", "hypothesis": "b", "label": "-"}\n',
            "line 1: label '-' is none of entail",
        ),
        ("qqp", "dev.tsv", "1\ta\tb\t3\n0\ta\tb\n", "line 2: 3 columns, not 4"),
    ],
)
def test_bad_glue_files_are_named_with_their_line(
    name: str, file: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=f"{file}, {message}"):
        load_dataset(name, path=str(tmp_path))


def test_glue_without_files_or_with_two_for_one_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds none of train.tsv, dev.tsv"):
        load_dataset("sst2", path=str(tmp_path))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.tsv").write_text("sentence\tlabel\nx\t1\n")
    with pytest.raises(ValueError, match="more than one file for the split 'train'"):
        load_dataset("sst2", path=str(tmp_path))


def _stars(count: int) -> list[dict[str, object]]:
    return [{"overall": float(i % 5 + 1), "reviewText": f"review {i}", "asin": "x"} for i in range(count)]


def test_amazon_takes_a_seeded_half_and_deals_it(tmp_path: Path) -> None:
    rows = _stars(200)
    del rows[7]["reviewText"]
    path = tmp_path / "Electronics_5.json.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    whole = load_dataset("amazon", path=str(path), fraction=1.0)
    assert {s: len(part) for s, part in whole.splits.items()} == {"train": 180, "valid": 10, "test": 10}
    assert whole.notes["reviews without text"] == 1 and whole.num_classes == 5
    learnt = load_dataset("amazon", path=str(path), fraction=1.0, tokenizer="bpe:290")
    assert _texts(learnt, "train") == _texts(whole, "train") and learnt.vocab_size == 290
    assert len(learnt.splits["train"].tokens.flat) < len(whole.splits["train"].tokens.flat) / 2, "no merge was learnt"
    half = load_dataset("amazon", path=str(path))
    assert {s: len(part) for s, part in half.splits.items()} == {"train": 90, "valid": 5, "test": 5}
    texts = [t for s in half.splits for t in _texts(half, s)]
    assert len(set(texts)) == 100 and texts != sorted(texts)
    for split in half.splits:
        for text, label in zip(_texts(half, split), _labels(half, split), strict=True):
            number = text.removeprefix("<s>").removesuffix("</s>").removeprefix("review ")
            assert label == (int(number) if number else 7) % 5
    other = load_dataset("amazon", path=str(path), seed=1)
    assert _texts(other, "train") != _texts(half, "train")


def test_the_paper_s_amazon_sizes_follow() -> None:
    counts = np.bincount(_places(6_739_590, 0.5, (90, 5, 5), 0) + 1)
    assert counts.tolist() == [3_369_795, 3_032_815, 168_490, 168_490]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"reviewText": "x"}', "line 2: has no 'overall'"),
        (b'{"overall": 6, "reviewText": "x"}', "line 2: 6 stars; 1 to 5 are possible"),
        (b'{"overall": ', "line 2: not JSON"),
        (b'{"overall": 1, "reviewText": "\xff"}', r"line 2: byte 30 \(0xff\) is not valid UTF-8; .*errors=replace"),
    ],
)
def test_bad_amazon_rows_are_named(line: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_bytes(b'{"overall": 1, "reviewText": "a"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=f"e.json, {message}"):
        load_dataset("amazon", path=str(tmp_path / "e.json"), fraction=1.0)


def _review(rating: str, text: str) -> str:
    title = "<title>\nT\n</title>"
    return f"<review>\n<rating>\n{rating}\n</rating>\n{title}\n<review_text>\n{text}\n</review_text>\n</review>\n"


def _blitzer(path: Path) -> Path:
    for domain in ("books", "dvd"):
        (path / domain).mkdir()
        (path / domain / "positive.review").write_text("<reviews>\n" + _review("5.0", f"{domain} &amp; a\n\nmore") * 5)
        (path / domain / "negative.review").write_text("".join(_review("2.0", f"bad {domain} {i}") for i in range(5)))
    return path


def test_blitzer_reviews(tmp_path: Path) -> None:
    path = _blitzer(tmp_path)
    dataset = load_dataset("blitzer", path=str(path))
    assert {s: len(part) for s, part in dataset.splits.items()} == {"train": 16, "valid": 2, "test": 2}
    rows = {pair for s in dataset.splits for pair in zip(_texts(dataset, s), _labels(dataset, s), strict=True)}
    assert ("<s>books & a\n\nmore</s>", 1) in rows and ("<s>bad dvd 3</s>", 0) in rows and len(rows) == 12
    assert sum(len(p) for p in load_dataset("blitzer", path=str(path), domains=["dvd"]).splits.values()) == 10
    assert sum(len(p) for p in load_dataset("blitzer", path=str(path / "dvd")).splits.values()) == 10
    with pytest.raises(ValueError, match="contains no domain food; it contains: "):
        load_dataset("blitzer", path=str(path), domains=["food"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_review("5.0", "x") + _review("3.0", "y"), "review at line 12: rating '3.0'; 1.0, 2.0, 4.0 or 5.0"),
        (_review("5.0", "x")[:-12], "line 1: this review is never closed"),
    ],
)
def test_bad_blitzer_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    path = _blitzer(tmp_path)
    (path / "dvd" / "positive.review").write_text(content)
    with pytest.raises(ValueError, match=f"dvd/positive.review, {message}"):
        load_dataset("blitzer", path=str(path))


def test_long_pairs_are_cut_fairly_and_short_ones_not_at_all() -> None:
    vocabulary = Bytes(special=True)

    def cut(a: int, b: int, length: int) -> tuple[int, int, bool]:
        row, was_cut = with_specials(np.full(a, 1), np.full(b, 2), vocabulary, length)
        assert len(row) <= length and row[0] == 257 and row[-1] == 258 and (row == 258).sum() == 3
        return int((row == 1).sum()), int((row == 2).sum()), was_cut

    assert cut(5, 5, 14) == (5, 5, False)
    assert cut(6, 5, 14) == (5, 5, True)
    assert cut(2, 50, 24) == (2, 18, True) and cut(50, 3, 24) == (17, 3, True) and cut(50, 50, 24) == (10, 10, True)
    with pytest.raises(ValueError, match="max_length=5 leaves no room"):
        cut(1, 1, 5)


def test_dealing_is_seeded_disjoint_and_complete() -> None:
    parts = dealt(103, (80, 10, 10), 0)
    assert [len(p) for p in parts] == [83, 10, 10]
    assert sorted(np.concatenate(parts).tolist()) == list(range(103))
    assert all((a == b).all() for a, b in zip(parts, dealt(103, (80, 10, 10), 0), strict=True))
    assert (parts[0] != dealt(103, (80, 10, 10), 1)[0]).any()
    with pytest.raises(ValueError, match="must not be negative"):
        dealt(10, (1, -1), 0)
