"""Random feature attention: its maps against their kernels by Monte Carlo, its gate against the recurrence."""

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cosformer.attention import build_attention
from cosformer.attention.rfa import arccos_features, fourier_features

NAMES = ["rfa_gaussian", "rfa_arccos", "rfa_gate_gaussian", "rfa_gate_arccos"]
D = 8


def build(name, causal=True, **options):
    torch.manual_seed(0)
    attn = build_attention(name, num_heads=2, head_dim=D, max_len=400, causal=causal, **options).double()
    with torch.no_grad():
        attn.sigma.uniform_(0.5, 1.5)
        if "gate" in name:
            attn.gate_bias.copy_(torch.tensor([[2.0], [-1.0]]))
    return attn


def inputs(n):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 2, n, D, dtype=torch.float64, generator=generator) for _ in range(3)]


def gaussian_kernel(x, y):
    return (-torch.cdist(x, y).square() / 2).exp()


def arccos_kernel(x, y):
    norms = x.norm(dim=-1)[:, None] * y.norm(dim=-1)
    angle = (x @ y.mT / norms).clamp(-1, 1).acos()
    return norms * (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)


@pytest.mark.parametrize("features, kernel", [(fourier_features, gaussian_kernel), (arccos_features, arccos_kernel)])
def test_features_estimate_their_kernel(features, kernel):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(6, 5, dtype=torch.float64, generator=generator) * 0.7 for _ in range(2))
    errors = []
    for count in (1_000, 100_000):
        w = torch.randn(count, 5, dtype=torch.float64, generator=generator)
        errors.append((features(x @ w.mT) @ features(y @ w.mT).mT - kernel(x, y)).abs().max())
    assert errors[1] < 0.015 and errors[1] < errors[0] / 3


@pytest.mark.parametrize("name, kernel", [("rfa_gaussian", gaussian_kernel), ("rfa_arccos", arccos_kernel)])
def test_attention_tends_to_that_of_its_kernel(name, kernel):
    """sigma stretches the unit vectors, so it sets the bandwidth of each channel."""
    attn = build(name, causal=False, num_features=20_000).eval()
    q, k, v = (x[:1] for x in inputs(12))
    unit_q, unit_k = (x / (x.norm(dim=-1, keepdim=True) + 1e-3) * attn.sigma for x in (q, k))
    scores = torch.stack([kernel(unit_q[0, h], unit_k[0, h]) for h in range(2)])
    expected = scores @ v / scores.sum(-1, keepdim=True)
    torch.testing.assert_close(attn(q, k, v)[0], expected[0], atol=0.03, rtol=0)


def dense(attn, q, k, v):
    """The closed form as a matrix: products of gates times products of features."""
    fq, fk = attn.features(q, k, first=0, fresh=False)
    weights = (fq @ fk.mT).tril()
    if hasattr(attn, "gate_weight"):
        gate = (torch.einsum("bhnd,hd->bhn", k, attn.gate_weight[..., 0]) + attn.gate_bias).sigmoid()
        n = q.shape[2]
        products = torch.ones(*gate.shape[:2], n, n, dtype=q.dtype)
        rows = [torch.ones_like(products[..., 0, :])]
        for t in range(1, n):
            rows.append(torch.where(torch.arange(n) < t, rows[-1] * gate[..., t, None], 1.0))
        weights = weights * torch.stack(rows, dim=-2) * (1 - gate)[..., None, :]
    sums = weights.sum(-1, keepdim=True)
    return weights @ v / (sums.clamp_min(1) if type(attn).__name__ == "RfaGaussian" else sums)


def test_keys_opposite_to_their_queries_leave_gaussian_rows_and_gradients_bounded():
    """Estimates cancel out there: with row sums down to 1e-6 outputs reached thousands, and gradients 1e12."""
    attn = build("rfa_gaussian", causal=False).eval()
    q, _, v = (x.requires_grad_() for x in inputs(40))
    out = attn(q, -q, v)
    assert out.abs().max() < 40 * v.abs().max()
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert gradient.abs().max() < 1e3


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_dense_form(name, assert_same_attention):
    # one query direction for all rows keeps the Gaussian estimates away from zero sums
    attn = build(name, num_features=256).eval()
    q, k, v = inputs(300)
    assert_same_attention(attn, lambda *x: dense(attn, *x), q * 0.1 + 1, k * 0.5 + 1, v, atol=1e-9)
    parameters = list(attn.parameters())
    grads = [
        torch.autograd.grad(form(q * 0.1 + 1, k * 0.5 + 1, v).square().sum(), parameters)
        for form in (attn, lambda *x: dense(attn, *x))
    ]
    for actual, expected in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-8, rtol=1e-7)
        assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["rfa_gate_gaussian", "rfa_gate_arccos"])
def test_a_masked_token_leaves_the_gate_open(name):
    attn = build(name).eval()
    q, k, v = inputs(50)
    key_mask = torch.arange(50).expand(2, 50) % 4 != 1
    kept = key_mask[0].nonzero().squeeze(-1)
    short = attn(q[:, :, kept], k[:, :, kept], v[:, :, kept])
    torch.testing.assert_close(attn(q, k, v, key_mask)[:, :, kept], short)


@pytest.mark.parametrize("name", NAMES)
def test_training_draws_anew_and_evaluation_does_not(name):
    attn = build(name)
    x = inputs(20)
    saved = attn.projection.clone()
    torch.manual_seed(3)
    first, second = attn(*x), attn(*x)
    torch.manual_seed(3)
    assert torch.equal(attn(*x), first), "torch.manual_seed does not repeat the draw"
    assert not torch.allclose(first, second)
    streamed, _ = attn.extend(*x)
    attn.eval()
    assert torch.equal(attn.projection, saved)
    torch.testing.assert_close(attn(*x), streamed)
    assert torch.equal(build(name, seed=5).projection, build(name, seed=5).projection)
    assert not torch.equal(build(name, seed=5).projection, build(name, seed=6).projection)


def test_checkpointing_repeats_the_draw():
    attn = build("rfa_gaussian", causal=False)
    grads = []
    for checkpointed in (False, True):
        q, k, v = (x.requires_grad_() for x in inputs(20))
        torch.manual_seed(0)
        out = checkpoint(attn, q, k, v, use_reentrant=False) if checkpointed else attn(q, k, v)
        torch.randn(5)
        grads.append(torch.autograd.grad(out.sum(), q)[0])
    assert torch.equal(*grads)


@pytest.mark.parametrize("name", ["rfa_gate_gaussian", "rfa_gate_arccos"])
def test_the_gate_has_no_bidirectional_form(name):
    with pytest.raises(ValueError, match="causal=True"):
        build(name, causal=False)
    with pytest.raises(ValueError, match="num_features=0"):
        build(name, num_features=0)
