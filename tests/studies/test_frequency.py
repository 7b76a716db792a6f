"""Figure 3's numbers against the paper's printed loop, and figure 1's circles."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from cosformer.report.figure import Figure
from studies.cosformer2022.algorithms import algorithm2
from studies.cosformer2022.drawings import TradeOff, trade_off
from studies.cosformer2022.frequency import (
    cosine_matrix,
    frequency_document,
    frequency_figures,
    mean_distance,
    threshold_counts,
    threshold_frequency,
)


def labels(figure: Figure) -> list[str]:
    return [element.text or "" for element in ET.fromstring(figure.data).iter("{http://www.w3.org/2000/svg}text")]


def stochastic(n: int, count: int) -> list[np.ndarray]:
    scores = np.random.default_rng(0).exponential(size=(count, n, n)) ** 3
    return list(scores / scores.sum(-1, keepdims=True))


def test_figure_1_names_every_circle_and_says_in_one_sentence_what_it_is() -> None:
    found = [TradeOff("cosformer", 55.0, 10.0, 100.0), TradeOff("relu", 53.0, 9.0, None)]
    figure = trade_off(found, name="f", title="T")
    assert figure.alt == "T: mean accuracy against training steps per second at 2,000, for cosformer, relu."
    assert figure.caption.endswith("the circle's area is the peak memory.")
    assert b">cosformer<" in figure.data and b">relu<" in figure.data


def test_figure_3_from_its_result_file() -> None:
    weights = {"softmax": [np.eye(8)] * 2, "cosformer": [np.eye(8), np.full((8, 8), 1 / 8)]}
    result = frequency_document(weights, threshold=0.9, command="made up")
    assert result["panels"][1]["percent"][0] == [100, 50, 50, 50, 50, 50, 50, 50]
    assert result["panels"][0]["counts"] == [1.0] * len(result["thresholds"]) and result["command"] == "made up"
    large = frequency_document({"softmax": [np.full((300, 300), 1 / 300)]}, threshold=0.5)
    assert np.shape(large["panels"][0]["percent"]) == (128, 128) and large["size"] == 300
    assert np.mean(large["panels"][0]["percent"]) == pytest.approx(50, abs=1.5)
    maps, keys = frequency_figures(result)
    assert labels(maps)[:3] == ["vanilla", "cosFormer", "cos, bare"] and "90%" in maps.alt
    away = np.abs(np.arange(8)[:, None] - np.arange(8))
    cosine = np.cos(np.pi / 16 * away)  # a quarter turn over the eight positions
    assert f"cos, bare: 8 by 8, {cosine.trace() / cosine.sum():.0%}" in maps.alt
    assert f"mean distance {(cosine * away).sum() / cosine.sum():.1f}." in maps.alt.partition("cos, bare")[2]
    assert labels(maps)[3:] == ["never", "always", "queries down, keys across"]
    assert result["panels"][0]["distance"] == 0 and result["panels"][1]["distance"] == pytest.approx(21 / 16, abs=1e-3)
    assert "softmax: half of it in 1.0 keys. cosformer: half of it in 3.0 keys." in keys.alt
    with pytest.raises(ValueError, match="attention-frequency"):
        frequency_figures({"format": 1, "rows": []})


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_equals_the_papers_loop(threshold: float) -> None:
    signed = np.random.default_rng(1).normal(size=(9, 9))
    awkward = [np.zeros((9, 9)), np.full((9, 9), 1 / 9), np.eye(9), signed, np.triu(signed).T]  # zero rows, ties, signs
    for matrices in (stochastic(17, 5), awkward):
        assert np.array_equal(threshold_frequency(matrices, threshold), algorithm2(matrices, threshold))


def test_a_known_matrix() -> None:
    row = np.array([[0.5, 0.1, 0.4]])
    assert threshold_frequency([row], 0.45).tolist() == [[1, 0, 0]]
    assert threshold_frequency([row], 0.5).tolist() == [[1, 0, 1]]  # 0.5 does not exceed 0.5
    assert threshold_frequency([row, row[:, ::-1]], 0.45).tolist() == [[0.5, 0, 0.5]]


def test_counts_are_the_rows_sums_of_the_frequency() -> None:
    matrices = [*stochastic(12, 3), np.random.default_rng(1).normal(size=(12, 12))]
    thresholds = [0.2, 0.5, 0.8]
    expected = [threshold_frequency(matrices, t).sum(axis=1).mean() for t in thresholds]
    assert threshold_counts(matrices, thresholds) == pytest.approx(expected)


def test_the_mean_distance_by_hand() -> None:
    assert mean_distance([np.eye(5)]) == 0
    # query 0 looks half at itself and half three away; query 1 has no weight; query 2 looks one back, with a minus
    matrix = np.array([[0.5, 0, 0, 0.5], [0, 0, 0, 0], [0, -0.7, 0, 0]])
    assert mean_distance([matrix]) == pytest.approx((1.5 + 1) / 2)
    assert mean_distance([matrix, np.eye(3)]) == pytest.approx(2.5 / 5)
    with pytest.raises(ValueError, match="no weight"):
        mean_distance([np.zeros((2, 2))])


def test_the_cosine_matrix() -> None:
    matrix = cosine_matrix(4)
    assert matrix.shape == (4, 4) and np.allclose(np.diag(matrix), 1)
    assert matrix[0, 2] == matrix[3, 1] == pytest.approx(np.cos(np.pi / 4))
    assert (cosine_matrix(50) > 0).all()


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"threshold=1\.5"):
        threshold_frequency([np.eye(2)], 1.5)
    with pytest.raises(ValueError, match="no matrix"):
        threshold_frequency([], 0.5)
    with pytest.raises(ValueError, match="no matrix"):
        threshold_counts([], [0.5])
    with pytest.raises(ValueError, match="two axes"):
        threshold_frequency([np.zeros((1, 2, 2))], 0.5)
