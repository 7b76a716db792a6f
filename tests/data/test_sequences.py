"""Blocks, packed lines, masking and batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosformer.data import Ragged, Split
from cosformer.data.masking import IGNORED, mask_tokens
from cosformer.data.padding import pad_rows
from cosformer.data.sequences import LMBlocks, PackedLines


def _split(lines: list[list[int]]) -> Split:
    flat = np.array([token for line in lines for token in line], np.uint16)
    return Split(Ragged(flat, np.cumsum([0, *map(len, lines)])))


LINES = st.lists(st.lists(st.integers(10, 99), max_size=9), min_size=1, max_size=12)


@given(LINES, st.integers(1, 7))
def test_every_token_is_a_target_once_and_follows_its_input(lines: list[list[int]], length: int) -> None:
    stream = [token for line in lines for token in line]
    blocks = LMBlocks(_split(lines), length, start_id=2)
    inputs = [int(i) for n in range(len(blocks)) for i in blocks[n][0]]
    targets = [int(t) for n in range(len(blocks)) for t in blocks[n][1]]
    assert targets == stream and inputs == [2, *stream][: len(stream)]
    whole = LMBlocks(_split(lines), length, start_id=2, drop_last=True)
    assert len(whole) == len(stream) // length and all(len(whole[i][0]) == length for i in range(len(whole)))


def test_blocks_end_and_windows_overlap() -> None:
    blocks = LMBlocks(_split([[5, 6, 7, 8]]), 3, start_id=2)
    assert [part.tolist() for part in blocks.window(1, 4)] == [[5, 6, 7], [6, 7, 8]]
    with pytest.raises(IndexError, match="block 2 of 2"):
        blocks[2]
    with pytest.raises(ValueError, match="length=0"):
        LMBlocks(_split([[1]]), 0, start_id=2)


@given(LINES, st.integers(2, 8))
def test_packed_rows_hold_whole_lines_unless_one_is_too_long(lines: list[list[int]], length: int) -> None:
    packed = PackedLines(_split(lines), length, bos_id=0)
    rows = [row.tolist() for row in packed]
    assert [t for row in rows for t in row[1:]] == [t for line in lines for t in line]
    assert all(row[0] == 0 and 1 < len(row) <= length for row in rows)
    ends = set(np.cumsum([len(line) for line in lines]).tolist())
    inside = [int(b) for b in packed.bounds[1:] if int(b) not in ends]
    starts = np.cumsum([0, *map(len, lines)])
    for bound in inside:
        line = int(np.searchsorted(starts, bound, side="right")) - 1
        assert len(lines[line]) > length - 1, "a line that fits into a row was cut"
    # packed greedily: the next line would not have fitted
    for a, b in zip(packed.bounds[:-1], packed.bounds[1:], strict=True):
        following = [e for e in ends if e > b]
        if b in ends and following:
            assert min(following) - a > length - 1


def test_masking_follows_the_rule() -> None:
    rng = np.random.default_rng(0)
    ids = np.arange(100, 300)
    random_ids = np.arange(1000, 1100)
    chosen = kept = masked = replaced = 0
    counts = []
    for _ in range(400):
        inputs, labels = mask_tokens(ids, rng, mask_id=7, random_ids=random_ids)
        where = labels != IGNORED
        assert (labels[where] == ids[where]).all() and (inputs[~where] == ids[~where]).all()
        counts.append(int(where.sum()))
        chosen += counts[-1]
        kept += int((inputs[where] == ids[where]).sum())
        masked += int((inputs[where] == 7).sum())
        replaced += int(((inputs[where] >= 1000) & (inputs[where] < 1100)).sum())
    assert set(counts) == {30} and kept + masked + replaced == chosen
    assert (
        abs(masked / chosen - 0.8) < 0.015 and abs(kept / chosen - 0.1) < 0.012 and abs(replaced / chosen - 0.1) < 0.012
    )


def test_the_fraction_of_the_count_is_drawn() -> None:
    rng = np.random.default_rng(0)
    ids, random_ids = np.arange(10), np.array([50])
    counts = [int((mask_tokens(ids, rng, mask_id=99, random_ids=random_ids)[1] >= 0).sum()) for _ in range(2000)]
    assert set(counts) == {1, 2} and abs(np.mean(counts) - 1.5) < 0.04


def test_masking_is_seeded_anew_each_epoch_and_spares_what_it_must() -> None:
    ids, never = np.arange(40), np.arange(40) < 35

    def draw(seed: int) -> list[int]:
        rng = np.random.default_rng(seed)
        return mask_tokens(ids, rng, mask_id=99, random_ids=np.array([5]), never=never, chance=0.4)[1].tolist()

    assert draw(1) == draw(1)
    assert any(draw(1) != draw(seed) for seed in range(2, 8))
    assert all(set(draw(seed)[:35]) == {IGNORED} and sum(x >= 0 for x in draw(seed)) == 2 for seed in range(20))
    with pytest.raises(ValueError, match=r"chance=1.5"):
        mask_tokens(ids, np.random.default_rng(0), mask_id=1, random_ids=ids, chance=1.5)


def test_padding_is_masked_and_never_meets_data() -> None:
    tokens, mask = pad_rows([np.array([3, 4]), np.array([], int), np.array([5, 6, 7])], 0)
    assert tokens.tolist() == [[3, 4, 0], [0, 0, 0], [5, 6, 7]] and tokens.dtype == np.int64
    assert mask.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    pixels, seen = pad_rows([np.array([0, 9]), np.array([0, 0])], None)
    assert seen.all() and pixels.tolist() == [[0, 9], [0, 0]]
    assert pad_rows([np.array([0, 9])], 0)[1].tolist() == [[False, True]], "Long Range Arena's padding masks black"
    with pytest.raises(ValueError, match="no padding id"):
        pad_rows([np.array([1]), np.array([1, 2])], None)
