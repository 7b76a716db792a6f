"""Performer against the performer-pytorch package with its projection matrix, against softmax, and its redraws."""

from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from cosformer.attention.performer import Performer, orthogonal_gaussian

D = 16


def build(causal=False, **options):
    return Performer(num_heads=2, head_dim=D, max_len=600, causal=causal, **options).double()


def inputs(n, scale=1.0):
    torch.manual_seed(0)
    return [scale * torch.randn(2, 2, n, D, dtype=torch.float64) for _ in range(3)]


@pytest.fixture
def package(monkeypatch):
    """The package's module; its eps is set to zero, because it adds it to features scaled by their largest."""
    module = pytest.importorskip("performer_pytorch.performer_pytorch")
    monkeypatch.setattr(module, "softmax_kernel", partial(module.softmax_kernel, eps=0.0))
    monkeypatch.setattr(
        module, "causal_linear_attention_noncuda", partial(module.causal_linear_attention_noncuda, eps=0.0)
    )
    return module


@pytest.mark.parametrize("n", [50, 300])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_it_is_the_package_with_the_same_projection(kernel, causal, n, package, assert_same_attention):
    torch.manual_seed(0)
    theirs = package.FastAttention(D, 40, causal=causal, generalized_attention=kernel == "relu").double()
    ours = build(causal, num_features=40, kernel=kernel, eps=0.0 if kernel == "softmax" else None).eval()
    ours.projection.copy_(theirs.projection_matrix)
    assert_same_attention(ours, theirs, *inputs(n), atol=1e-9)


def softmax_error(num_features, eps=None):
    q, k, v = inputs(200, 0.3)
    expected = F.scaled_dot_product_attention(q, k, v)
    errors = [(build(num_features=num_features, eps=eps, seed=s).eval()(q, k, v) - expected).norm() for s in range(5)]
    return float(torch.stack(errors).mean() / expected.norm())


def test_the_error_to_softmax_falls_as_features_grow():
    errors = [softmax_error(m) for m in (16, 64, 256, 1024, 4096)]
    # one over the square root: 0.5 for each step, measured 0.47 to 0.51
    assert all(after < 0.6 * before for before, after in pairwise(errors)), errors
    assert errors[-1] < 0.02


def test_its_floor_costs_little():
    """eps is relative to a typical feature: with it the estimate is as good as without."""
    assert softmax_error(1024) < 1.02 * softmax_error(1024, eps=0.0)


def test_features_are_unbiased_for_the_softmax_kernel():
    q, k, _ = (x[:1, :1] for x in inputs(4, 0.5))
    q_exponents, k_exponents = [], []
    for seed in range(200):
        attn = build(num_features=D * 16, eps=0.0, seed=seed)
        q_exponents.append(attn._exponent(q).exp())
        k_exponents.append(attn._key_features(k))
    estimate = torch.cat(q_exponents, -1) @ torch.cat(k_exponents, -1).mT / (200 * D * 16)
    torch.testing.assert_close(estimate, (q @ k.mT / D**0.5).exp(), rtol=0.03, atol=0)


def test_rows_of_a_block_are_orthogonal_and_as_long_as_gaussian_vectors():
    rows = orthogonal_gaussian(1000, D, seed=0)
    assert rows.shape == (1000, D)
    block = rows[:D].double()
    gram = block @ block.mT
    torch.testing.assert_close(gram, gram.diag().diag(), atol=1e-5, rtol=0)
    squares = rows.square().sum(-1)
    assert abs(squares.mean() - D) < 0.6 and abs(squares.var() - 2 * D) < 6  # chi square of D
    assert rows.mean(0).abs().max() < 4 / 1000**0.5, "rows prefer a direction"


@pytest.mark.parametrize("scale", [0.01, 1.0, 12.0, 100.0])
@pytest.mark.parametrize("causal", [False, True])
def test_inputs_of_any_size_give_finite_averages(causal, scale):
    attn = build(causal).float().eval()
    q, k, v = (x.float().requires_grad_() for x in inputs(300, scale))
    weights = attn(q, k, torch.ones_like(v))
    torch.testing.assert_close(weights, torch.ones_like(weights), rtol=1e-4, atol=1e-4)
    attn(q, k, v).sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_it_is_redrawn_by_training_calls_only():
    q, k, v = inputs(5)
    attn = build(redraw_interval=3)
    drawn = [attn.projection.clone()]
    for _ in range(7):
        attn(q, k, v)
        drawn.append(attn.projection.clone())
    changed = [not torch.equal(a, b) for a, b in pairwise(drawn)]
    assert changed == [False, False, False, True, False, False, True]

    attn.eval()
    for _ in range(7):
        attn(q, k, v)
    attn.train()
    causal = build(True, redraw_interval=1)
    for _ in range(3):
        causal.extend(q, k, v)
    assert torch.equal(attn.projection, drawn[-1]) and causal.draws == 0


def test_redraws_follow_from_the_seed():
    first, second, other = build(seed=1), build(seed=1), build(seed=2)
    assert torch.equal(first.projection, second.projection) and not torch.equal(first.projection, other.projection)
    for attn in (first, second, other):
        attn.redraw()
    assert torch.equal(first.projection, second.projection) and not torch.equal(first.projection, other.projection)
    resumed = build(seed=1)
    resumed.load_state_dict(first.state_dict())
    first.redraw()
    resumed.redraw()
    assert torch.equal(first.projection, resumed.projection)

    fixed = build(redraw_interval=None)
    before = fixed.projection.clone()
    for _ in range(3):
        fixed(*inputs(5))
    assert torch.equal(fixed.projection, before)


def test_features_default_to_d_log_d():
    assert build().num_features == 44
    for wrong in ({"kernel": "cosh"}, {"num_features": 0}, {"redraw_interval": 0}, {"eps": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            build(**wrong)


def test_a_key_along_a_row_of_the_projection_does_not_overflow():
    attn = Performer(num_heads=1, head_dim=256, max_len=8, causal=False).eval()
    k = 4 * attn.projection[None, None, :8]  # exp(W k' - |k'|^2 / 2) is about exp(128) here, past float32
    out = attn(torch.randn(1, 1, 8, 256, generator=torch.Generator().manual_seed(0)), k, torch.ones(1, 1, 8, 3))
    torch.testing.assert_close(out, torch.ones_like(out))
