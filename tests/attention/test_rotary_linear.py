"""Rotary linear attention against the dense form with explicit rotation matrices."""

import pytest
import torch
import torch.nn.functional as F

from cosformer.attention.rotary_linear import RotaryLinear, rotate

D = 6


def build(causal):
    return RotaryLinear(num_heads=2, head_dim=D, max_len=400, causal=causal)


def inputs(n, s=None):
    torch.manual_seed(0)
    return [torch.randn(2, 2, length, D, dtype=torch.float64) for length in (n, s or n, s or n)]


def rotation(position):
    """The block-diagonal matrix R_p."""
    blocks = []
    for pair in range(D // 2):
        angle = torch.tensor(position * 10_000.0 ** (-2 * pair / D), dtype=torch.float64)
        blocks.append(torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2))
    return torch.block_diag(*blocks)


def dense(q, k, v, causal):
    fq, fk = F.elu(q) + 1, F.elu(k) + 1
    matrices = torch.stack([rotation(p) for p in range(max(q.shape[2], k.shape[2]))])
    turned_q = torch.einsum("nde,bhne->bhnd", matrices[: q.shape[2]], fq)
    turned_k = torch.einsum("nde,bhne->bhnd", matrices[: k.shape[2]], fk)
    num, den = turned_q @ turned_k.mT, fq @ fk.mT
    if causal:
        num, den = num.tril(), den.tril()
    return num @ v / (den.sum(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("n, s, causal", [(30, 30, False), (300, 300, False), (300, 300, True), (40, 300, False)])
def test_it_is_the_dense_form(n, s, causal, assert_same_attention):
    attn = build(causal)
    assert_same_attention(attn, lambda q, k, v: dense(q, k, v, causal), *inputs(n, s), atol=1e-10)


def test_scores_depend_on_the_distance_alone():
    q, k, _ = inputs(1)
    near, far = (rotate(q, m) @ rotate(k, n).mT for m, n in ((7, 3), (100_007, 100_003)))
    torch.testing.assert_close(near, far)
    assert not torch.allclose(near, q @ k.mT)


def test_weights_may_be_negative_and_need_not_sum_to_one():
    q, k, _ = inputs(60)
    weights = build(False)(q, k, torch.eye(60, dtype=torch.float64).expand(2, 2, 60, 60))
    assert (weights < 0).any() and (weights.sum(-1) < 0.9).any()
