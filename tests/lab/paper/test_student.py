"""Student's t against scipy's."""

import math

import pytest
from scipy import stats

from cosformer.lab.paper.student import t_cdf, t_quantile


@pytest.mark.parametrize("freedom", range(1, 12))
def test_distribution_and_quantiles(freedom: int) -> None:
    for t in (-40.0, -2.5, -0.3, 0.0, 1.0, 3.7, 120.0):
        assert t_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-12)
    for share in (0.001, 0.2, 0.5, 0.8, 0.975, 0.999):
        assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), abs=1e-9, rel=1e-9)


def test_ends() -> None:
    assert (t_cdf(math.inf, 4), t_cdf(-math.inf, 4)) == (1.0, 0.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        t_quantile(1.0, 4)
