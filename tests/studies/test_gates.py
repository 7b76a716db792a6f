"""The gates on data whose answer is known."""

import math

import numpy as np
import pytest

from cosformer.data.listops import TOKENS, encode
from cosformer.data.masking import IGNORED
from cosformer.data.pathfinder_draw import draw
from studies.cosformer2022.gates import Neighbours, disc_gaps, root_value, trigram_nats, witten_bell


def test_witten_bell_by_hand() -> None:
    lower = np.array([[0.5, 0.25, 0.25]])
    found = witten_bell(np.array([[3, 1, 0], [0, 0, 0]]), lower)
    np.testing.assert_allclose(found[0], [(3 + 2 * 0.5) / 6, (1 + 2 * 0.25) / 6, 2 * 0.25 / 6])
    np.testing.assert_allclose(found[1], lower[0])
    np.testing.assert_allclose(found.sum(1), 1)


def test_a_trigram_table_knows_a_rule_of_two_tokens_and_not_chance() -> None:
    rng = np.random.default_rng(0)
    ruled = [0, 1]
    for _ in range(20_000):
        ruled.append((ruled[-1] + ruled[-2]) % 5)
    assert trigram_nats(np.array(ruled[:15_000]), np.array(ruled[15_000:]), 5) < 0.01
    chance = rng.integers(0, 5, 60_000)
    assert trigram_nats(chance[:50_000], chance[50_000:], 5) == pytest.approx(math.log(5), abs=0.01)


def test_neighbours_see_both_sides_and_a_masked_one_says_nothing() -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 4, (3_000, 2))
    # the middle follows from both neighbours, from none alone
    rows = [np.array([9, a, 4 + (a + b) % 4, b]) for a, b in ends]
    table = Neighbours(rows, 11, mask_id=10, random_ids=np.arange(8))

    def nats(inputs: list[int], middle: int) -> float:
        labels = np.array([IGNORED, IGNORED, middle, IGNORED])
        return float(table.nats(np.array(inputs), labels)[0])

    assert nats([9, 1, 10, 2], 7) < 0.05 and nats([9, 1, 10, 2], 6) > 3
    assert nats([9, 10, 10, 2], 7) == pytest.approx(math.log(8), abs=0.1)  # one in two is 9
    # from one neighbour, four middles are alike; one that is shown is the true one in half of the cases, or one of
    # eight by chance
    plain, shown = math.exp(-nats([9, 10, 10, 2], 7)), math.exp(-nats([9, 10, 7, 2], 7))
    assert shown == pytest.approx(plain * (1 + 1 / 8) / (plain + 1 / 8), rel=1e-6)


def test_the_discs_are_found() -> None:
    images = draw(64, "tiny", [0, 0, 0])
    gaps = disc_gaps(images.pixels)
    true = ((images.markers[:, 0] - images.markers[:, 1]) ** 2).sum(1)
    assert (np.abs(np.sqrt(gaps) - np.sqrt(true)) < 1.01).mean() > 0.9


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MED 2 [MAX 9 9 ] 5 8 4 ]", 4),
        ("[MED 2 5 8 ]", 5),
        ("[SM 7 8 [MIN 1 2 ] ]", 5),
        ("[MAX 3 [SM 9 ] ]", 3),
        ("[MIN [SM 9 1 ] ]", -1),
    ],
)
def test_the_root_reads_its_own_digits(text: str, value: int) -> None:
    assert root_value(encode(text)) == (TOKENS.index(text.split()[0]), value)
