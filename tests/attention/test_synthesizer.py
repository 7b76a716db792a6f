"""Each kind of Synthesizer against its formula."""

import pytest
import torch
from torch import Tensor

from cosformer.attention.synthesizer import KINDS, Synthesizer

HEADS, DIM, MAX_LEN = 2, 6, 23


def build(kind: str, causal: bool = False, **options) -> Synthesizer:
    torch.manual_seed(0)
    attn = Synthesizer(num_heads=HEADS, head_dim=DIM, max_len=MAX_LEN, causal=causal, kind=kind, **options).double()
    for parameter in attn.parameters():  # biases start at zero
        torch.nn.init.normal_(parameter)
    return attn


def mlp(network, x: Tensor, head: int) -> Tensor:
    """One head of the two-layer network, token by token."""
    hidden = torch.relu(network.weight1[head].mT @ x + network.bias1[head, 0])
    return network.weight2[head].mT @ hidden + network.bias2[head, 0]


def logit_row(attn: Synthesizer, x: Tensor, head: int, i: int) -> Tensor:
    """The logits of query i, x [D], over all max_len keys."""
    if attn.kind == "dense":
        return mlp(attn.network, x, head)
    if attn.kind == "random":
        return attn.table[head, i]
    if attn.kind == "factorised_dense":
        coarse, fine = mlp(attn.coarse, x, head), mlp(attn.fine, x, head)
        assert len(coarse) * len(fine) >= MAX_LEN > (len(coarse) - 1) * len(fine)
        return torch.stack([coarse[j // len(fine)] * fine[j % len(fine)] for j in range(MAX_LEN)])
    return attn.right[head] @ attn.left[head, i]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n, s, causal, masked", [(23, 23, False, False), (9, 9, True, True), (7, 20, False, True)])
def test_it_is_the_formula(kind, n, s, causal, masked, assert_same_attention):
    attn = build(kind, causal)
    key_mask = torch.ones(2, s, dtype=torch.bool)
    if masked:
        key_mask[0, 2:5] = key_mask[1, 0] = False
    allowed = key_mask[:, None, :].expand(-1, n, -1)
    if causal:
        allowed = allowed.tril()
    k = torch.randn(2, HEADS, s, DIM, dtype=torch.float64)

    def formula(q: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros(2, HEADS, n, v.shape[-1], dtype=torch.float64)
        for b in range(2):
            for head in range(HEADS):
                for i in range(n):
                    if allowed[b, i].any():
                        row = logit_row(attn, q[b, head, i], head, i)[:s]
                        out[b, head, i] = row.masked_fill(~allowed[b, i], -torch.inf).softmax(-1) @ v[b, head]
        return out + 0 * q.sum()  # the random kinds do not read q at all

    q, v = (torch.randn(2, HEADS, length, DIM, dtype=torch.float64) for length in (n, s))
    assert_same_attention(
        lambda q, v: attn(q, k, v, key_mask if masked else None) + 0 * q.sum(), formula, q, v, atol=1e-12
    )


def test_rank_belongs_to_the_factorised_table():
    assert build("factorised_random").left.shape == (HEADS, MAX_LEN, 8)
    assert build("factorised_random", rank=3).right.shape == (HEADS, MAX_LEN, 3)
