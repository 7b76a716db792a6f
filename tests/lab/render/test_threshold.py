"""Algorithm 2 against the paper's own loop, and what is known of the cosine matrix."""

import numpy as np
import pytest

from cosformer.lab.render.frequency import cosine_matrix, mean_distance, threshold_counts, threshold_frequency


def naive(matrices: list[np.ndarray], threshold: float) -> np.ndarray:
    """The paper's pseudo code, line by line."""
    total = np.zeros(matrices[0].shape)
    for matrix in matrices:
        for i in range(matrix.shape[0]):
            index = sorted(range(matrix.shape[1]), key=lambda j: -matrix[i][j])
            p = 0.0
            for l in index:
                p += matrix[i][l]
                total[i][l] += 1
                if p > threshold:
                    break
    return total / len(matrices)


def stochastic(n: int, count: int) -> list[np.ndarray]:
    scores = np.random.default_rng(0).exponential(size=(count, n, n)) ** 3
    return list(scores / scores.sum(-1, keepdims=True))


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_equals_the_papers_loop(threshold: float) -> None:
    matrices = stochastic(17, 5)
    assert np.array_equal(threshold_frequency(matrices, threshold), naive(matrices, threshold))


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.9])
def test_equals_the_papers_loop_with_ties_zero_rows_and_negative_weights(threshold: float) -> None:
    signed = np.random.default_rng(1).normal(size=(9, 9))
    matrices = [np.zeros((9, 9)), np.full((9, 9), 1 / 9), np.eye(9), signed, np.triu(signed).T]
    assert np.array_equal(threshold_frequency(matrices, threshold), naive(matrices, threshold))


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
    matrix = cosine_matrix(4, 8)
    assert matrix.shape == (4, 4) and np.allclose(np.diag(matrix), 1)
    assert matrix[0, 2] == matrix[3, 1] == pytest.approx(np.cos(np.pi / 8))
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
    with pytest.raises(ValueError, match="max_len=3 is below the 4"):
        cosine_matrix(4, 3)
