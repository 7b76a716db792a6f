"""Sinkhorn attention: its operator, its limits and a dense reference."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.sinkhorn import Sinkhorn, sinkhorn

HEADS, DIM, BLOCK = 2, 8, 4


def build(causal: bool = False, max_len: int = 64, **options) -> Sinkhorn:
    torch.manual_seed(0)
    options = {"block": BLOCK, **options}
    return Sinkhorn(num_heads=HEADS, head_dim=DIM, max_len=max_len, causal=causal, **options).double().eval()


def tokens(n: int, seed: int = 0) -> Tensor:
    return torch.randn(2, HEADS, n, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_operator_is_alternate_division_and_doubly_stochastic_in_the_end():
    logits = 2 * torch.randn(3, 9, 9, dtype=torch.float64)
    everything = torch.ones(9, 9, dtype=torch.bool)
    expected = logits.exp()
    for _ in range(4):
        expected = expected / expected.sum(-2, keepdim=True)
        expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(sinkhorn(logits, everything, 4, causal=False), expected)
    order = sinkhorn(logits, everything, 200, causal=False)
    for dim in (-1, -2):
        torch.testing.assert_close(order.sum(dim), torch.ones(3, 9, dtype=torch.float64), atol=1e-9, rtol=0)


def test_the_operator_leaves_out_what_is_not_allowed():
    logits, live = torch.randn(9, 9, dtype=torch.float64), torch.arange(9) % 3 != 1
    order = sinkhorn(logits, live[:, None] & live, 5, causal=False)
    alone = sinkhorn(logits[live][:, live], torch.ones(6, 6, dtype=torch.bool), 5, causal=False)
    torch.testing.assert_close(order[live][:, live], alone)
    assert not order[~live].any() and not order[:, ~live].any()


def test_the_causal_operator_divides_by_the_columns_so_far():
    logits = torch.randn(6, 6, dtype=torch.float64)
    past = torch.ones(6, 6, dtype=torch.bool).tril(-1)
    expected = logits.exp() * past
    for _ in range(3):
        expected = torch.where(past, expected / expected.cumsum(0), 0)
        expected = torch.where(past, expected / expected.sum(-1, keepdim=True), 0)
    torch.testing.assert_close(sinkhorn(logits, past, 3, causal=True), expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [3, 16, 29])
def test_it_is_the_dense_definition(n, causal, masked, assert_same_attention):
    attn = build(causal)
    key_mask = torch.ones(2, n, dtype=torch.bool)
    if masked and n > BLOCK:
        key_mask[0, 8:14] = key_mask[1, 1::3] = False
    blocks = -(-n // BLOCK)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros(2, HEADS, n, DIM, dtype=torch.float64)
        for b in range(2):
            live = [i for i in range(n) if key_mask[b, i]]
            used = sorted({i // BLOCK for i in live})
            for h in range(HEADS):
                logits = torch.full((blocks, blocks), -torch.inf, dtype=torch.float64)
                for u in used:
                    end = u * BLOCK + 1 if causal else (u + 1) * BLOCK
                    read = [i for i in live if i < end and (causal or i >= u * BLOCK)]
                    summary = k[b, h, read].sum(0)
                    for w in used:
                        if w < u or not causal:
                            logits[u, w] = summary @ attn.sorter[h, :, w] / attn.temperature
                order = sinkhorn(logits.masked_fill(logits == -torch.inf, 0), logits > -torch.inf, 8, causal)
                for i in range(n):
                    own = [j for j in live if j // BLOCK == i // BLOCK and (j <= i or not causal)]
                    keys, values, weight = [k[b, h, j] for j in own], [v[b, h, j] for j in own], [1.0] * len(own)
                    for slot in range(BLOCK):
                        source = [(order[i // BLOCK, j // BLOCK], j) for j in live if j % BLOCK == slot]
                        share = sum(r for r, _ in source)
                        if share > 0:
                            keys.append(sum(r * k[b, h, j] for r, j in source) / share)
                            values.append(sum(r * v[b, h, j] for r, j in source) / share)
                            weight.append(share)
                    if keys:
                        scores = torch.stack(keys) @ q[b, h, i] / DIM**0.5 + torch.stack(
                            [torch.as_tensor(x, dtype=torch.float64).log() for x in weight]
                        )
                        out[b, h, i] = scores.softmax(-1) @ torch.stack(values)
        return out

    assert_same_attention(
        lambda q, k, v: attn(q, k, v, key_mask if masked else None),
        dense, tokens(n), tokens(n, 1), tokens(n, 2), atol=1e-11,
    )  # fmt: skip


def test_a_cold_sorter_brings_whole_blocks(masked_softmax_attention, assert_same_attention):
    n, target = 24, [2, 0, 1, 5, 3, 4]
    attn = build(temperature=0.01)
    k = tokens(n, 1)
    k[:, :, ::BLOCK] = 30 * torch.eye(6, DIM, dtype=torch.float64)  # block u sums to about 30 e_u
    with torch.no_grad():
        attn.sorter[:] = 0
        attn.sorter[:, range(6), target] = 1.0
    block = torch.arange(n) // BLOCK
    brought = torch.tensor(target)[block]
    allowed = torch.cat((block[:, None] == block, brought[:, None] == block), dim=1)  # own, and the one that is brought
    assert_same_attention(
        attn,
        lambda q, k, v: masked_softmax_attention(q, torch.cat((k, k), 2), torch.cat((v, v), 2), allowed),
        tokens(n), k, tokens(n, 2), atol=1e-9,
    )  # fmt: skip


def test_with_one_block_it_is_softmax(assert_same_attention):
    for causal in (False, True):
        assert_same_attention(
            build(causal, block=32),
            lambda q, k, v, causal=causal: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
            *(tokens(30, i) for i in range(3)), atol=1e-12,
        )  # fmt: skip


def test_the_sorter_learns():
    for causal in (False, True):
        attn = build(causal)
        attn(*(tokens(64, i) for i in range(3))).square().sum().backward()
        assert attn.sorter.grad is not None and attn.sorter.grad.abs().max() > 1e-6


def test_gumbel_noise_is_for_training_only():
    q, k, v = (tokens(32, i) for i in range(3))
    attn, plain = build(gumbel=True), build()
    assert torch.equal(attn(q, k, v), plain(q, k, v))
    attn.train()
    first, second = attn(q, k, v), attn(q, k, v)
    assert (first - second).abs().max() > 1e-6
    assert torch.equal(plain.train()(q, k, v), plain.eval()(q, k, v))
