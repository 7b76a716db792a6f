"""Nystromformer against Hugging Face's module, the nystrom-attention package and softmax."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.nystrom import Nystrom, pseudo_inverse

DIM = 8


def build(heads: int = 2, **options) -> Nystrom:
    torch.manual_seed(0)
    return Nystrom(num_heads=heads, head_dim=DIM, max_len=64, causal=False, **options).double()


def heads_of(x: Tensor, layer, heads: int) -> Tensor:
    return layer(x).unflatten(-1, (heads, DIM)).transpose(1, 2)


def test_it_is_hugging_faces(assert_same_attention):
    transformers = pytest.importorskip("transformers")
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    heads, n = 2, 40
    config = transformers.NystromformerConfig(
        hidden_size=heads * DIM, num_attention_heads=heads, num_landmarks=8, segment_means_seq_len=n,
        conv_kernel_size=5, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    module = NystromformerSelfAttention(config).double()
    module.init_option = "exact"  # one norm for each matrix; "original" mixes the items of a batch
    attn = build(num_landmarks=8, conv_kernel=5)
    with torch.no_grad():
        attn.conv_weight.copy_(module.conv.weight)

    def ours(x: Tensor) -> Tensor:
        q, k, v = (heads_of(x, layer, heads) for layer in (module.query, module.key, module.value))
        return attn(q, k, v).transpose(1, 2).flatten(2)

    x = torch.randn(3, n, heads * DIM, dtype=torch.float64)
    assert_same_attention(ours, lambda x: module(x)[0], x, atol=1e-12)


def test_it_is_the_packages(assert_same_attention):
    package = pytest.importorskip("nystrom_attention")
    # one head and one item: the package takes its norm over the whole batch
    module = package.NystromAttention(DIM, dim_head=DIM, heads=1, num_landmarks=8, residual_conv_kernel=5).double()
    attn = build(heads=1, num_landmarks=8, conv_kernel=5)
    with torch.no_grad():
        attn.conv_weight.copy_(module.res_conv.weight)

    def ours(x: Tensor) -> Tensor:
        q, k, v = (y[:, None] for y in module.to_qkv(x).chunk(3, dim=-1))
        return module.to_out(attn(q, k, v)[:, 0])

    assert_same_attention(ours, module, torch.randn(1, 48, DIM, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("n", [8, 19, 37, 40])
def test_landmarks_are_means_of_the_tokens_that_count(n, assert_same_attention):
    attn = build(num_landmarks=8, conv_kernel=3)
    key_mask = torch.ones(1, n, dtype=torch.bool)
    key_mask[:, 1::5] = False
    live = key_mask[0].nonzero().flatten()

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # `live` in 8 parts whose sizes differ by one at most; fewer when there are fewer tokens
        segment = torch.arange(len(live)) * 8 // len(live)
        parts = [live[segment == i] for i in segment.unique()]
        q_mean, k_mean = (torch.stack([x[:, :, part].mean(2) for part in parts], dim=2) for x in (q, k))
        left, middle = (q @ k_mean.mT / DIM**0.5).softmax(-1), (q_mean @ k_mean.mT / DIM**0.5).softmax(-1)
        right = (q_mean @ k[:, :, live].mT / DIM**0.5).softmax(-1)
        out = left @ pseudo_inverse(middle, 6) @ right @ v[:, :, live]
        return out + F.conv2d(v * key_mask[:, None, :, None], attn.conv_weight, padding=(1, 0), groups=2)

    inputs = torch.randn(3, 1, 2, n, DIM, dtype=torch.float64)
    assert_same_attention(lambda q, k, v: attn(q, k, v, key_mask), dense, *inputs, atol=1e-12)


def test_with_a_landmark_to_each_token_it_is_softmax():
    q, k, v = torch.randn(3, 2, 2, 30, DIM, dtype=torch.float64)
    exact = F.scaled_dot_product_attention(q, k, v)
    errors = []
    for iterations in (6, 12, 40):
        attn = build(num_landmarks=64, conv_kernel=None, iterations=iterations)
        errors.append((attn(q, k, v) - exact).abs().max())
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-9


def test_the_iteration_gives_the_pseudo_inverse():
    matrix = torch.randn(3, 12, 12, dtype=torch.float64).softmax(-1)
    padded = F.pad(matrix, (0, 2, 0, 2))  # two landmarks that do not exist
    expected = F.pad(torch.linalg.pinv(matrix), (0, 2, 0, 2))
    torch.testing.assert_close(pseudo_inverse(padded, 40), expected, atol=1e-7, rtol=1e-7)
