"""Decay in the Triton kernels: low precision, normalisers, both directions, one token, range of rates."""

from types import SimpleNamespace

import pytest
import torch

from cosformer.ops.spec import AttentionSpec, Call
from ops.comparison import NORMALISERS, compare, rates, within
from ops.definition import attend_pairs

EVERYTHING = {"relu": True, "angles": True, "masked": True, "packed": False, "with_state": True}
HALF = [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)]


@pytest.mark.parametrize(("dtype", "limit"), HALF)
def test_low_precision(small, watch, in_nan, dtype, limit):
    within(compare(small, **EVERYTHING, dtype=dtype, place=in_nan), limit)


QUICK = [("none", 1e-6), ("clamp", 150.0), ("signed", 150.0)]
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in NORMALISERS if case not in QUICK]


@pytest.mark.parametrize(("normaliser", "eps"), QUICK + SLOW)
def test_normalisers(small, normaliser, eps):
    within(compare(small, **EVERYTHING, normaliser=normaliser, eps=eps), 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), *HALF])
@pytest.mark.parametrize(("e", "n"), [(40, 300), (80, 560)])
def test_the_sizes_that_ship(interpreter, watch, e, n, dtype, limit):
    from cosformer.ops.triton import launch

    within(compare(launch, **EVERYTHING, dtype=dtype, sizes=(1, 2, 1, n, 24, e)), limit)


def test_no_rate_is_no_decay(small):
    q, k, v = torch.randn(3, 1, 2, 130, 8).unbind()
    p = AttentionSpec(True, True, 0, 0, 200, 200, "clamp", 1e-6)
    with_zeros, without = (small.forward(Call(q, k, v, *[None] * 4, x, p)) for x in (torch.zeros(2, 8), None))
    for a, b in zip(with_zeros, without, strict=True):
        assert (a - b).abs().max() <= 1e-6 * b.abs().max()


@pytest.mark.parametrize("packed", [False, True])
def test_both_directions_are_two_causal_calls(small, packed):
    """Unnormalised sums of the two, one division, and the gradients of each from the output and row sums of both."""
    n, d = 130, 8
    q, k, v, g = torch.randn(4, 1, 2, n, d).unbind()
    decay, cu = rates(2, d), torch.tensor([0, 5, 90, n]) if packed else None
    clamp = AttentionSpec(True, True, 0, 0, 200, 200, "clamp", 1e-6)
    back = None if cu is None else (n - cu).flip(0)
    left = Call(q[..., :4], k[..., :4], v, None, None, None, cu, decay[:, :4], clamp)
    right = Call(*(x.flip(2) for x in (q[..., 4:], k[..., 4:], v)), None, None, None, back, decay[:, 4:], clamp)
    one, two = (small.forward(call._replace(spec=clamp._replace(normaliser="none"))) for call in (left, right))
    den = one[1] + two[1].flip(2)
    out = (one[0] + two[0].flip(2)) / den.clamp_min(1e-6)[..., None]
    nothing = [torch.zeros_like(x) for x in one[2:]]
    first = small.backward(left, g, *nothing, out, den, *one[2:])
    second = small.backward(right, g.flip(2), *nothing, out.flip(2), den.flip(2).contiguous(), *two[2:])
    got = [torch.cat([a, b.flip(2)], -1) for a, b in zip(first[:2], second[:2], strict=True)]
    got.append(first[2] + second[2].flip(2))

    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    exact, exact_den, *_ = attend_pairs(*leaves, length=200, decay=decay, cu_seqlens=cu)
    wanted = [exact, exact_den, *torch.autograd.grad(exact, leaves, g.double())]
    for a, b in zip([out, den, *got], wanted, strict=True):
        assert (a - b).abs().max() <= 2e-6 * b.abs().max()


@pytest.mark.parametrize("angles", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_step(small, in_nan, watch, dtype, angles):
    b, h, hk, d, e = 2, 4, 2, 24, 40
    q, k, v = (in_nan(torch.randn(b, n, 1, c).to(dtype)) for n, c in ((h, d), (hk, d), (hk, e)))
    features, length = (2 * d, 100) if angles else (d, 0)
    state = in_nan(torch.randn(b, hk, features, e)), in_nan(torch.rand(b, hk, features) + 1)
    p = AttentionSpec(True, True, 37, 37, length, length, "clamp", 1e-6)
    for mask in (None, torch.tensor([[True], [False]])):
        got = small.step(Call(q, k, v, *state, mask, None, in_nan(rates(hk, d)), p))
        want = attend_pairs(
            q, k, v, causal=True, length=length, first=37, key_mask=mask, state=state, decay=rates(hk, d)
        )
        for a, exact in zip(got, (want[0], *want[2:]), strict=True):
            limit = 1e-6 if a.dtype == torch.float32 else 1e-3
            assert (a.double() - exact).abs().max() <= limit * exact.abs().max()
    assert watch.launches == 2


# a rate whose exp(-rate) lies half way between two numbers of float32: 300 multiplications by it are off by 9e-6
AWKWARD = 10.5 * 2**-24


def test_slow_rates_do_not_drift_step_by_step(small):
    """New keys all the while, so that the rounding of additions is random."""
    steps = 300
    p = AttentionSpec(True, True, 0, 0, 0, 0, "clamp", 1e-6)
    kv, z = torch.full((1, 1, 4, 4), 100.0), torch.full((1, 1, 4), 100.0)
    exact = kv.double()
    for x in torch.rand(steps, 1, 1, 1, 4):
        _, kv, z = small.step(Call(x, x, x, kv, z, None, None, torch.full((1, 4), AWKWARD), p))
        exact = exact * torch.exp(torch.tensor(-AWKWARD, dtype=torch.float64)) + x.double().mT @ x.double()
    assert (kv.double() / exact - 1).abs().max() < 2e-6


@pytest.mark.parametrize("reverse", [False, True])
def test_slow_rates_do_not_drift_from_segment_to_segment(small, reverse):
    """Segments of one token, eight at a time: 150 multiplications."""
    from cosformer.ops.triton.plan import cut

    count, rate = 1_200, AWKWARD / 8
    where = cut((0, count), 0, 1, True, torch.device("cpu"))
    spec = AttentionSpec(True, True, 0, 0, 0, 0, "clamp", 1e-6)
    decay = torch.full((1, 4), rate)
    call = SimpleNamespace(batch=1, key_heads=1, features=4, d=4, e=4, kind="ieee", p=spec, decay=decay, rates=decay)
    first, sums = (torch.full((1, 1, 4, 4), 1000.0), torch.full((1, 1, 4), 1000.0)), torch.rand(1, count, 20)
    _, _, kv, z = small._running_sums(call, sums, *first, where, reverse=reverse)
    order = torch.arange(count, dtype=torch.float64)
    kept = torch.exp(-rate * (order if reverse else order.flip(0)))
    exact = (sums[0].double() * kept[:, None]).sum(0) + 1000 * torch.exp(torch.tensor(-rate * count).double())
    got = torch.cat([kv.flatten(), z.flatten()])
    assert (got.double() / exact - 1).abs().max() < 1e-6


def test_what_is_selected_away_may_overflow(small):
    """At rate 4 and values of a million, a product beyond the diagonal is infinite, and infinity times zero is NaN."""
    n, d = 70, 8
    q, k = (torch.rand(1, 1, n, d) * 1e6 for _ in range(2))
    v, g = torch.randn(1, 1, n, d), torch.randn(1, 1, n, d)
    decay, p = torch.full((1, d), 4.0), AttentionSpec(True, True, 0, 0, 0, 0, "clamp", 1e-6)
    given = Call(q, k, v, None, None, None, None, decay, p)
    results = small.forward(given)
    grads = small.backward(given, g, *(torch.zeros_like(x) for x in results[2:]), *results)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out, den, *_ = attend_pairs(*leaves, causal=True, decay=decay)
    wanted = [out, den, *torch.autograd.grad(out, leaves, g.double())]
    for a, b in zip([*results[:2], *grads[:3]], wanted, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


def test_launches_are_those_of_plain_cosformer(small, watch):
    compare(small, **EVERYTHING, sizes=(1, 2, 1, 130, 8, 8))
    assert watch.launches == 3 + 7
