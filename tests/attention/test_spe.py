"""Stochastic positional encoding: its expectation by Monte Carlo, its waves exactly, its draws."""

import math

import pytest
import torch
import torch.nn.functional as F

from cosformer.attention.spe import BLOCK, Spe

D = 4


def build(causal=False, **options):
    torch.manual_seed(0)
    attn = Spe(num_heads=2, head_dim=D, max_len=10_000, causal=causal, **options).double()
    with torch.no_grad():
        attn.frequency_logit.add_(3)  # some that turn within a few positions
        attn.gain.mul_(1 + 0.3 * torch.randn_like(attn.gain))
    return attn


def inputs(n, s=None):
    generator = torch.Generator().manual_seed(1)
    shapes = (n, s or n, s or n)
    return [torch.randn(2, 2, length, D, dtype=torch.float64, generator=generator) for length in shapes]


def expected_scores(attn, q, k):
    """``sum_c q_mc k_nc P_c(m - n) / sqrt(D)`` by its formula."""
    distance = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).double()
    frequency = attn.frequency_logit.sigmoid()[:, :, 0] / 2  # [sines, H, D]
    angle = 2 * math.pi * frequency[..., None, None] * distance + attn.phase[:, :, 0, :, None, None]
    waves = (attn.gain[:, :, 0, :, None, None].square() * angle.cos()).sum(0)  # [H, D, N, S]
    delta = attn.gate_logit[:, 0, :, None, None].sigmoid()
    return torch.einsum("bhmc,bhnc,hcmn->bhmn", q, k, delta * waves + 1 - delta) / D**0.5


@pytest.mark.parametrize("n, s", [(20, 20), (5, 70)])
@torch.no_grad()
def test_products_of_the_images_estimate_the_relative_kernel(n, s):
    errors = []
    q, k, _ = inputs(n, s)
    for realizations in (1_000, 30_000):
        attn = build(num_realizations=realizations).eval()
        q_image, k_image = attn.images(q, k, first=3, fresh=False)
        errors.append(float((q_image @ k_image.mT / realizations**0.5 - expected_scores(attn, q, k)).abs().max()))
    assert errors[1] < 0.15 and errors[1] < errors[0] / 3, errors
    assert expected_scores(attn, q, k).abs().max() > 2


@torch.no_grad()
def test_training_draws_average_to_the_same_kernel():
    q, k, _ = inputs(6)
    attn = build(num_realizations=100)
    products = []
    for _ in range(300):
        q_image, k_image = attn.images(q, k, first=0, fresh=True)
        products.append(q_image @ k_image.mT / 10)
    torch.testing.assert_close(torch.stack(products).mean(0), expected_scores(attn, q, k), atol=0.1, rtol=0)


@pytest.mark.parametrize("first, count", [(0, 1), (0, BLOCK + 1), (9_000, 200)])
def test_waves_are_the_cosines_and_sines_of_the_positions(first, count):
    attn = build()
    cos, sin = attn._waves(2, first, count, torch.float32)
    position = torch.arange(first, first + count).double()[:, None]
    angle = 2 * math.pi * position * (attn.frequency_logit[2].sigmoid() / 2)
    torch.testing.assert_close(cos.double(), angle.cos(), atol=3e-7, rtol=0)
    torch.testing.assert_close(sin.double(), angle.sin(), atol=3e-7, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_linear_attention_of_the_images(causal, assert_same_attention):
    attn = build(causal).eval()

    def dense(q, k, v):
        q_image, k_image = literal_images(attn, q, k)
        weights = (F.elu(q_image) + 1) @ (F.elu(k_image) + 1).mT
        weights = weights.tril() if causal else weights
        return weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)

    q, k, v = inputs(300)
    assert_same_attention(attn, dense, q, k, v, atol=1e-10)
    grads = [torch.autograd.grad(form(q, k, v).square().sum(), list(attn.parameters())) for form in (attn, dense)]
    for actual, expected in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-8, rtol=1e-7)
        assert expected.abs().max() > 1e-3


def literal_images(attn, q, k):
    """The images by the definition, with Omega and Z as matrices for each channel."""
    images = []
    for x, phase in ((q, attn.phase), (k, torch.zeros_like(attn.phase))):
        position = torch.arange(x.shape[2]).double()[:, None]
        angle = 2 * math.pi * position * (attn.frequency_logit.sigmoid() / 2) + phase  # [sines, H, N, D]
        omega = torch.stack((angle.cos(), angle.sin()))  # [2, sines, H, N, D]
        bar = torch.einsum("wshnd,shd,swhdr->hndr", omega, attn.gain[:, :, 0], attn.noise)
        delta = attn.gate_logit.sigmoid()[..., None]
        bar = delta.sqrt() * bar + (1 - delta).sqrt() * attn.gate_noise[:, None]
        images.append(torch.einsum("bhnd,hndr->bhnr", x, bar) / (D * attn.num_realizations) ** 0.25)
    return images


def test_training_draws_anew_and_evaluation_does_not():
    attn, x = build(True), inputs(20)
    torch.manual_seed(3)
    first, second = attn(*x), attn(*x)
    torch.manual_seed(3)
    assert torch.equal(attn(*x), first) and not torch.allclose(first, second)
    streamed, _ = attn.extend(*x)
    torch.testing.assert_close(attn.eval()(*x), streamed)
    assert torch.equal(build(seed=5).noise, build(seed=5).noise)
    assert not torch.equal(build(seed=5).noise, build(seed=6).noise)
