"""Learning rates against the formulas they come from, and NAG against its own definition."""

import math

import pytest
import torch

from cosformer.experiment import SCHEDULES, TrainConfig
from cosformer.train.nag import NAG
from cosformer.train.schedules import schedule


def config(**fields) -> TrainConfig:
    return TrainConfig(**{"steps": 1000, "batch": 1, "lr": 2.0} | fields)


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_rise_linearly_to_the_peak(name) -> None:
    rate = schedule(config(schedule=name, warmup=10))
    assert [rate(t) for t in range(10)] == pytest.approx([(t + 1) / 10 for t in range(10)])
    assert rate(10) == pytest.approx(1.0)


def test_linear_reaches_its_end_at_the_last_update() -> None:
    rate = schedule(config(warmup=100, min_lr=0.2))
    assert rate(100) == 1.0 and rate(550) == pytest.approx(0.55) and rate(1000) == pytest.approx(0.1)


def test_cosine_as_the_long_range_arena_has_it() -> None:
    """base * min(1, t/w) * 0.5 (1 + cos(pi ((t - w) / cycle mod 1)))"""
    rate = schedule(config(schedule="cosine", warmup=175, cycle=400))
    for t in (175, 300, 574, 575, 700):
        assert rate(t) == pytest.approx(0.5 * (1 + math.cos(math.pi * ((t - 175) / 400 % 1))))


def test_cosine_cycles_double_and_shrink_as_in_fairseq() -> None:
    """lr_i = min_i + 0.5 (max_i - min_i)(1 + cos(pi t / T_i)), T doubled and both limits times 0.75 per cycle."""
    rate = schedule(config(schedule="cosine_cycles", warmup=16, cycle=100, min_lr=0.002, steps=5000))

    def expected(t: int) -> float:
        t, period, shrink = t - 16, 100, 1.0
        while t >= period:
            t, period, shrink = t - period, 2 * period, shrink * 0.75
        low, high = 0.002 * shrink, 2.0 * shrink
        return (low + 0.5 * (high - low) * (1 + math.cos(math.pi * t / period))) / 2.0

    for t in (16, 60, 115, 116, 250, 315, 316, 700, 1500):
        assert rate(t) == pytest.approx(expected(t)), t
    assert rate(116) == pytest.approx(0.75)


def test_inverse_sqrt_is_the_arenas_rsqrt() -> None:
    """base * min(1, t/w) / sqrt(max(t, w)), whose peak is base / sqrt(w)."""
    base, w = 0.05, 1000
    train = config(schedule="inverse_sqrt", warmup=w, lr=base / math.sqrt(w), steps=5000)
    rate = schedule(train)
    for t in (1000, 1500, 4999):
        assert train.lr * rate(t) == pytest.approx(base / math.sqrt(t))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"schedule='cosin'.*cosine_cycles"):
        config(schedule="cosin")
    with pytest.raises(ValueError, match="micro_batch=3 must divide batch=8"):
        config(batch=8, micro_batch=3)


def test_nag_follows_its_definition_when_the_rate_changes() -> None:
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = NAG([p], lr=0.1, momentum=0.9, weight_decay=0.01)
    x, velocity, before = p.detach().clone(), torch.zeros(5, dtype=torch.float64), 0.1
    for lr in (0.1, 0.2, 0.05, 0.05):
        optimizer.param_groups[0]["lr"] = lr
        gradient = torch.randn(5, dtype=torch.float64)
        p.grad = gradient.clone()
        optimizer.step()
        rho = lr / before
        x = x * (1 - lr * 0.01) + 0.9**2 * rho * velocity - 1.9 * lr * gradient
        velocity, before = 0.9 * rho * velocity - lr * gradient, lr
        torch.testing.assert_close(p.detach(), x, rtol=1e-12, atol=1e-12)


def test_nag_with_a_constant_rate_is_torchs_nesterov() -> None:
    torch.manual_seed(0)
    a, b = (torch.nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(2))
    ours, theirs = NAG([a], lr=0.1, momentum=0.9), torch.optim.SGD([b], lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(5):
        gradient = torch.randn(4, dtype=torch.float64)
        a.grad, b.grad = gradient.clone(), gradient.clone()
        ours.step()
        theirs.step()
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-12)
