"""ListOps: the evaluator, the official form, and a generator with the benchmark's distribution."""

import io
import itertools
import lzma
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cosformer.data import load_dataset
from cosformer.data.listops import TOKENS, encode, read_tsv, to_text, write_tsv
from cosformer.data.listops_trees import Rules, _unique, generate, make_chunk

RULES = {"[MIN": min, "[MAX": max, "[SM": lambda v: sum(v) % 10, "[MED": lambda v: int(statistics.median(v))}


def evaluate(tokens: np.ndarray) -> int:
    """The value of an expression, by a reading of the rules that the generator knows nothing of."""
    stack: list[list] = [[]]
    for word in (TOKENS[i] for i in tokens.tolist()):
        if word == "]":
            rule, *values = stack.pop()
            stack[-1].append(RULES[rule](values))
        elif word in RULES:
            stack.append([word])
        else:
            stack[-1].append(int(word))
    ((value,),) = stack
    return value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MED 1 2 3 9 ]", 2),  # the mean of the middle two, cut off
        ("[MED 9 1 5 ]", 5),
        ("[SM 9 9 [MIN 3 8 ] ]", 1),
        ("( ( ( [MIN 8 ) ( ( ( [SM 7 ) 7 ) ] ) ) ] )", 4),
        ("7", 7),
    ],
)
def test_expressions_have_their_value(expression: str, value: int) -> None:
    assert evaluate(encode(expression)) == value


def test_unknown_tokens_are_named() -> None:
    with pytest.raises(ValueError, match=r"'\[AVG' is no ListOps token; they are \[MIN"):
        encode("[AVG 1 2 ]")


def test_the_official_form_nests_to_the_left() -> None:
    assert to_text(encode("[MAX 5 [MIN 6 4 ] ]")) == "( ( ( [MAX 5 ) ( ( ( [MIN 6 ) 4 ) ] ) ) ] )"
    cut = encode("[MAX 5 [MIN 6")  # by max_length
    assert np.array_equal(encode(to_text(cut)), cut) and to_text(cut) == "( ( [MAX 5 ) ( [MIN 6 ) )"


@pytest.fixture(scope="module")
def rows() -> list[tuple[np.ndarray, int]]:
    return list(generate(500, seed=3, workers=1))


def test_generated_rows_keep_the_rules(rows: list[tuple[np.ndarray, int]]) -> None:
    assert len({tokens.tobytes() for tokens, _ in rows}) == 500
    for tokens, label in rows:
        assert 500 < len(tokens) < 2000
        assert evaluate(tokens) == label
        depth = np.cumsum(np.where(tokens < 5, 1, np.where(tokens == 5, -1, 0)))
        assert depth.max() <= 9 and depth[-1] == 0
    counts = np.bincount(np.concatenate([tokens for tokens, _ in rows]), minlength=16)
    assert counts[0] == 0 and counts[1:5].sum() == counts[5]
    # digits and operators are uniform
    assert stats.chisquare(counts[6:]).pvalue > 1e-4 and stats.chisquare(counts[1:5]).pvalue > 1e-4


def test_numbers_of_arguments_are_uniform_from_2_to_10(rows: list[tuple[np.ndarray, int]]) -> None:
    """Where the argument counts are not shaped by the bound on the length: far from the root most of them are."""
    counts = np.zeros(12, int)
    for tokens, _ in rows[:100]:
        open_counts: list[int] = []
        for token in tokens.tolist():
            if token == 5:
                counts[open_counts.pop()] += 1
            if token != 5 and open_counts:
                open_counts[-1] += 1
            if token < 5:
                open_counts.append(0)
    assert set(np.flatnonzero(counts)) == set(range(2, 11))
    # the condition of being long favours many arguments slightly
    assert counts[2:11].max() / counts[2:11].min() < 2.5


def test_the_result_depends_on_the_seed_and_not_on_the_workers() -> None:
    def take(seed: int, workers: int) -> list[bytes]:
        return [tokens.tobytes() for tokens, _ in itertools.islice(generate(800, seed=seed, workers=workers), 800)]

    assert take(0, 1) == take(0, 3) != take(1, 1)


def test_duplicates_are_dropped() -> None:
    """The rules make none in practice, so they are put in."""
    chunk = make_chunk(0, seed=0)
    fresh = make_chunk(1, seed=0)
    rows = len(chunk[2]) + 5
    found = [tokens.tobytes() for tokens, _ in _unique(iter([chunk, chunk, fresh]), rows)]
    assert len(found) == rows == len(set(found))


def test_a_generator_that_cannot_reach_the_length_gives_up() -> None:
    with pytest.raises(ValueError, match="do not reach that length: take the defaults"):
        next(generate(1, seed=0, rules=Rules(max_depth=3), workers=1))
    with pytest.raises(ValueError, match="max_depth=1"):
        next(generate(1, seed=0, rules=Rules(max_depth=1)))


def test_the_tsv_form_is_written_and_read(rows: list[tuple[np.ndarray, int]], tmp_path: Path) -> None:
    write_tsv(tmp_path / "basic_train.tsv", rows[:20])
    content = (tmp_path / "basic_train.tsv").read_bytes()
    assert content.startswith(b"Source\tTarget\r\n( ( (") and content.endswith(b"\r\n")
    (tmp_path / "basic_val.tsv.xz").write_bytes(lzma.compress(content.replace(b"\r\n", b"\n")))  # read as well
    dataset = load_dataset("listops", path=str(tmp_path), max_length=700)
    for split in ("train", "valid"):
        part = dataset.splits[split]
        assert part.labels is not None and part.labels.tolist() == [label for _, label in rows[:20]]
        assert all((a == b[:700]).all() for a, (b, _) in zip(part.tokens, rows, strict=False))
    assert dataset.notes["rows cut"] == 2 * sum(len(tokens) > 700 for tokens, _ in rows[:20])
    assert (dataset.vocab_size, dataset.pad_id, dataset.num_classes) == (16, 0, 10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Text\tLabel\n", r"line 1: the header is \['Text', 'Label'\]"),
        (b"Source\tTarget\n[MIN 1 2 ]\n", "line 2: 1 columns, not 2"),
        (b"Source\tTarget\n[MIN 1 2 ]\t10\n", r"line 2: label '10' is not 0\.\.9"),
        (b"Source\tTarget\n[MIN 1 2 ]\t1\n[MIN 1 x ]\t1\n", "line 3: 'x' is no ListOps token"),
        (b"Source\tTarget\n[MIN 1 \xff ]\t1\n", "line 2: byte 7 .* is not valid UTF-8"),
    ],
)
def test_bad_files_are_named_with_their_line(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"x.tsv, {message}"):
        list(read_tsv(io.BytesIO(content), "x.tsv"))


def test_a_small_set_is_made_on_the_fly_and_found_again() -> None:
    dataset = load_dataset("listops-small", train=30, valid=5, test=5, seed=4)
    assert [len(s) for s in dataset.splits.values()] == [30, 5, 5]
    for part in dataset.splits.values():
        assert part.labels is not None
        assert [evaluate(np.array(tokens)) for tokens in part.tokens] == part.labels.tolist()
    assert dataset.vocabulary.decode(np.array(dataset.splits["train"].tokens[0][:1])) in TOKENS
    assert load_dataset("listops-small", train=30, valid=5, test=5, seed=4).folder == dataset.folder
    assert load_dataset("listops-small", train=30, valid=5, test=5, seed=5).folder != dataset.folder
    assert dataset.folder.name.rpartition("-")[0] == "listops-small"  # it does not pass for the whole set


def _lengths_and_labels(rows: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([len(tokens) for tokens, _ in rows]), np.bincount([label for _, label in rows], minlength=10)


@pytest.fixture(scope="module")
def published(real: Callable[[str], Path]) -> list[tuple[np.ndarray, int]]:
    with lzma.open(real("listops/basic_train.tsv.xz")) as stream:
        return list(read_tsv(stream, "basic_train.tsv"))


def test_the_published_labels_are_our_values(published: list[tuple[np.ndarray, int]]) -> None:
    assert len(published) == 4000
    assert [evaluate(tokens) for tokens, _ in published] == [label for _, label in published]


def test_the_published_text_is_our_text(real: Callable[[str], Path]) -> None:
    with lzma.open(real("listops/basic_train.tsv.xz"), "rt", newline="") as file:
        lines = file.read().split("\r\n")[1:101]
    assert [to_text(encode(line.split("\t")[0])) for line in lines] == [line.split("\t")[0] for line in lines]


@pytest.mark.parametrize(
    ("options", "rows", "same"),
    [
        ({}, 8_000, True),
        ({"max_depth": 9}, 4_000, False),
        ({"max_arguments": 5, "max_depth": 20}, 200, False),
        pytest.param({"max_arguments": 5}, 12, False, marks=pytest.mark.slow),
    ],
)
def test_the_distribution_is_the_published_one_and_no_other(
    published: list[tuple[np.ndarray, int]], options: dict[str, int], rows: int, same: bool
) -> None:
    lengths, labels = _lengths_and_labels(published)
    our_lengths, our_labels = _lengths_and_labels(list(generate(rows, seed=11, rules=Rules(**options))))
    by_length = stats.ks_2samp(lengths, our_lengths).pvalue
    if same:
        assert by_length > 0.01
        assert stats.chi2_contingency(np.stack([labels, our_labels])).pvalue > 0.01
    else:
        assert by_length < 1e-6


def test_shorter_trees_are_as_long_as_asked_and_have_their_value() -> None:
    rows = list(generate(200, seed=5, rules=Rules(longer_than=50, shorter_than=120), workers=1))
    lengths = [len(tokens) for tokens, _ in rows]
    assert min(lengths) > 50 and max(lengths) < 120 and len(set(lengths)) > 20
    assert all(evaluate(tokens) == value for tokens, value in rows[:50])
    dataset = load_dataset("listops", train=4, valid=2, test=2, longer_than=50, shorter_than=120, workers=1)
    assert all(50 < n < 120 for split in dataset.splits.values() for n in split.tokens.lengths)
