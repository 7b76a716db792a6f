"""Inducing points against their definition."""

import pytest
import torch
from torch import Tensor

from cosformer.attention.inducing import Inducing

HEADS, DIM = 2, 8


def build(**options) -> Inducing:
    torch.manual_seed(0)
    return Inducing(num_heads=HEADS, head_dim=DIM, max_len=64, causal=False, **options).double()


def tokens(n: int) -> Tensor:
    return torch.randn(2, HEADS, n, DIM, dtype=torch.float64)


@pytest.mark.parametrize("masked", [False, True])
def test_it_is_two_dense_attentions(masked, masked_softmax_attention, assert_same_attention):
    attn = build(num_inducing=5)
    n, s = 17, 29
    key_mask = torch.rand(2, s) > 0.3 if masked else torch.ones(2, s, dtype=torch.bool)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = key_mask[:, None, None, :].expand(-1, HEADS, 5, -1)
        summary = masked_softmax_attention(attn.read_points.expand(2, -1, -1, -1), k, v, allowed)
        return (q @ attn.write_points.mT / DIM**0.5).softmax(-1) @ summary

    assert_same_attention(
        lambda q, k, v: attn(q, k, v, key_mask if masked else None), dense, tokens(n), tokens(s), tokens(s), atol=1e-12
    )


def test_the_points_learn():
    attn = build()
    q, k, v = tokens(20), tokens(20), tokens(20)
    attn(q, k, v).square().sum().backward()
    for name, points in attn.named_parameters():
        assert points.grad is not None and points.grad.abs().amin((0, 2)).max() > 0, name


def test_the_order_of_the_keys_is_nothing_to_it():
    attn = build()
    q, k, v = tokens(30), tokens(30), tokens(30)
    order = torch.randperm(30)
    torch.testing.assert_close(attn(q, k[:, :, order], v[:, :, order]), attn(q, k, v), atol=1e-13, rtol=0)
    torch.testing.assert_close(attn(q[:, :, order], k, v), attn(q, k, v)[:, :, order], atol=1e-13, rtol=0)
