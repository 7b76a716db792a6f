"""WikiText as words, bytes and BPE; tokenizers with known ids; the Python library's text."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cosformer.data import load_dataset
from cosformer.data.subwords import Subwords, text_vocabulary

TRAIN = " \n = Title = \n \n the cat and the <unk> @-@ dog \n"
VALID = " the bird \n"


@pytest.fixture
def archive(pack: Callable, tmp_path: Path) -> str:
    texts = {"test": VALID * 2, "train": TRAIN, "valid": VALID}
    files = {f"wikitext-2/wiki.{split}.tokens": text for split, text in texts.items()}
    return str(pack(tmp_path / "wikitext-2-v1.zip", files))


def test_words_get_the_official_vocabulary_and_one_end_a_line(archive: str) -> None:
    dataset = load_dataset("wikitext2", path=archive)
    # frequency first, then spelling; <unk> is a word of the text and stays <unk>
    words = ["<s>", "<pad>", "</s>", "<unk>", "=", "the", "@-@", "Title", "and", "cat", "dog", "<mask>"]
    assert [dataset.vocabulary.decode(np.array([i])) for i in range(dataset.vocab_size)] == words
    train = dataset.splits["train"]
    assert train.tokens.lengths.tolist() == [1, 4, 1, 8]
    assert dataset.vocabulary.decode(np.array(train.tokens[3])) == "the cat and the <unk> @-@ dog </s>"
    assert dataset.vocabulary.decode(np.array(dataset.splits["valid"].tokens[0])) == "the <unk> </s>"
    assert dataset.notes["words outside the vocabulary"] == 3 and len(dataset.splits["test"]) == 2
    v = dataset.vocabulary
    assert (v.bos_id, v.pad_id, v.eos_id, v.unk_id, v.mask_id) == (0, 1, 2, 3, 11)


def test_bytes_keep_every_byte(archive: str) -> None:
    dataset = load_dataset("wikitext2", path=archive, tokenizer="bytes")
    row = np.array(dataset.splits["train"].tokens[1])
    assert dataset.vocabulary.decode(row) == " = Title = </s>" and row[-1] == 258


def test_a_bpe_is_learnt_from_the_train_split_and_saved_with_the_set(archive: str) -> None:
    dataset = load_dataset("wikitext2", path=archive, tokenizer="bpe:265")
    assert dataset.vocab_size == 265 and (dataset.vocabulary.bos_id, dataset.pad_id) == (0, 1)
    texts = [dataset.vocabulary.decode(np.array(row)) for row in dataset.splits["train"].tokens]
    assert texts == [line + "</s>" for line in TRAIN.split("\n")[:-1]]
    assert len(dataset.splits["train"].tokens.flat) < len(TRAIN), "no merge was learnt"
    again = load_dataset("wikitext2", path=archive, tokenizer="bpe:265")
    row = np.array(again.splits["valid"].tokens[0])
    assert again.folder == dataset.folder and again.vocabulary.decode(row) == " the bird </s>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "bpe:many"}, "after 'bpe:' comes a number"),
        ({"tokenizer": "bpe:100"}, "100 entries is too small: bytes and special tokens take 261"),
        ({"tokenizer": "gpt5"}, "nor a folder with a tokenizer's files"),
        ({"tokenizer": "bytes", "vocabulary": "x"}, "goes with tokenizer='words'"),
    ],
)
def test_bad_options_are_refused(archive: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset("wikitext2", path=archive, **options)


def test_without_a_train_file_the_vocabulary_must_come_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "wiki.valid.tokens").write_text(VALID)
    with pytest.raises(ValueError, match=r"holds no wiki.train.tokens.*vocabulary=FILE"):
        load_dataset("wikitext103", path=str(tmp_path))
    (tmp_path / "words.txt").write_text("bird the the")
    dataset = load_dataset("wikitext103", path=str(tmp_path), vocabulary=str(tmp_path / "words.txt"))
    assert dataset.splits["valid"].tokens[0].tolist() == [4, 5, 2]
    with pytest.raises(ValueError, match=r"holds no file named wiki.train.tokens"):
        load_dataset("wikitext103", path=str(tmp_path / "words.txt"), tokenizer="bytes")


def test_invalid_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "wiki.train.raw").write_bytes(b"fine\nb\xc3\n")
    with pytest.raises(ValueError, match=r"wiki.train.raw, line 2: byte 1"):
        load_dataset("wikitext2", path=str(tmp_path), tokenizer="bytes")


def _bpe_folder(folder: Path, merges: str) -> Path:
    folder.mkdir()
    vocab = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4, "b": 5, "ab": 6, "Ġ": 7, "<mask>": 8}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text(merges)
    return folder


def test_vocab_and_merges_files_are_used(tmp_path: Path, archive: str) -> None:
    folder = _bpe_folder(tmp_path / "bpe", "#version: 0.2\na b\n")
    flat, lengths = text_vocabulary(str(folder), list).encode(["abab b", "", "<mask>a"])
    assert flat.tolist() == [6, 6, 7, 5, 8, 4] and lengths.tolist() == [4, 0, 2]
    with pytest.raises(ValueError, match=r"merges.txt, line 2: 'a b c' is not two tokens"):
        Subwords.load(_bpe_folder(tmp_path / "bad", "#version: 0.2\na b c\n"))
    with pytest.raises(FileNotFoundError, match=r"contains no tokenizer: expected tokenizer\.json"):
        Subwords.load(tmp_path)
    # the same tokenizer in another folder, with a model's weights beside it, is the same set
    first = load_dataset("wikitext2", path=archive, tokenizer=str(folder)).folder
    other = _bpe_folder(tmp_path / "other", "#version: 0.2\na b\n")
    (other / "model.safetensors").write_bytes(b"weights")
    assert load_dataset("wikitext2", path=archive, tokenizer=str(other)).folder == first
    # another tokenizer in the same folder is another set
    (folder / "merges.txt").write_text("#version: 0.2\n")
    assert load_dataset("wikitext2", path=archive, tokenizer=str(folder)).folder != first


@pytest.mark.parametrize(
    ("name", "size", "text", "ids"),
    [
        ("gpt2", 50_257, "Hello world", [15496, 995]),
        ("gpt2", 50_257, "The quick brown fox", [464, 2068, 7586, 21831]),
        ("roberta-base", 50_265, "Hello world", [31414, 232]),
        ("roberta-base", 50_265, " the<mask>", [5, 50264]),
        ("bert-base-uncased", 30_522, "Hello, world!", [7592, 1010, 2088, 999]),
    ],
)
def test_real_tokenizers_give_the_known_ids(
    real: Callable[[str], Path], name: str, size: int, text: str, ids: list[int]
) -> None:
    vocabulary = Subwords.load(real(f"tokenizers/{name}"))
    assert vocabulary.size == size
    flat, _ = vocabulary.encode([text])
    assert flat.tolist() == ids


def test_real_special_tokens(real: Callable[[str], Path]) -> None:
    roberta, bert = (Subwords.load(real(f"tokenizers/{n}")) for n in ("roberta-base", "bert-base-uncased"))
    assert (roberta.bos_id, roberta.pad_id, roberta.eos_id, roberta.unk_id, roberta.mask_id) == (0, 1, 2, 3, 50264)
    assert (bert.bos_id, bert.pad_id, bert.eos_id, bert.unk_id, bert.mask_id) == (101, 0, 102, 100, 103)
    assert roberta.double_separator and not bert.double_separator
    assert Subwords.load(real("tokenizers/gpt2")).pad_id is None


def test_the_python_library_is_always_there() -> None:
    dataset = load_dataset("python", max_bytes=300_000)
    assert list(dataset.splits) == ["train", "valid", "test"] and dataset.vocab_size == 260
    sizes = [len(split.tokens.flat) for split in dataset.splits.values()]
    assert 200_000 < sum(sizes) < 320_000 and min(sizes) > 0
    flat = np.array(dataset.splits["train"].tokens.flat)
    assert "import " in dataset.vocabulary.decode(flat[:100_000]) and (flat == 258).sum() > 1
    assert load_dataset("python", max_bytes=300_000).folder == dataset.folder
    with pytest.raises(ValueError, match="max_bytes=10; at least 100000"):
        load_dataset("python", max_bytes=10)


@pytest.mark.parametrize("seed", range(6))
def test_no_split_of_the_least_of_the_python_library_is_empty(seed: int) -> None:
    splits = load_dataset("python", max_bytes=100_000, seed=seed).splits
    sizes = {name: len(split.tokens.flat) for name, split in splits.items()}
    assert min(sizes.values()) > 0 and sizes["train"] > 50_000
