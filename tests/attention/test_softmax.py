"""Softmax attention is scaled_dot_product_attention, with a cache and without N x N masks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cosformer.attention.key_value_state import KeyValueState
from cosformer.attention.softmax import ROWS, Softmax


def inputs(n, s, dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(2, 3, n, 8, dtype=dtype), *(torch.randn(2, 3, s, 8, dtype=dtype) for _ in range(2))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 40, ROWS + 40])
def test_it_is_the_definition(causal, masked, n, masked_softmax_attention, assert_same_attention):
    attn = Softmax(num_heads=3, head_dim=8, max_len=n, causal=causal)
    key_mask = torch.arange(n) % 4 != 1 if masked else torch.ones(n, dtype=torch.bool)
    allowed = key_mask.expand(n, n).tril() if causal else key_mask.expand(n, n)
    assert_same_attention(
        lambda q, k, v: attn(q, k, v, key_mask.expand(2, n) if masked else None),
        lambda q, k, v: masked_softmax_attention(q, k, v, allowed),
        *inputs(n, n),
        atol=1e-12,
    )


def test_it_is_torchs_attention_bitwise():
    q, k, v = inputs(40, 40, torch.float32)
    for causal in (False, True):
        attn = Softmax(num_heads=3, head_dim=8, max_len=40, causal=causal)
        assert torch.equal(attn(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=causal))


def test_it_is_the_attention_inside_multihead_attention():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(24, 3, batch_first=True, dtype=torch.float64)
    x, y = torch.randn(2, 10, 24, dtype=torch.float64), torch.randn(2, 15, 24, dtype=torch.float64)
    key_mask = torch.rand(2, 15) > 0.3
    w, b = module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3)
    q, k, v = (F.linear(z, w[i], b[i]).unflatten(-1, (3, 8)).transpose(1, 2) for i, z in enumerate((x, y, y)))
    attn = Softmax(num_heads=3, head_dim=8, max_len=15, causal=False)
    out = module.out_proj(attn(q, k, v, key_mask).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, module(x, y, y, key_padding_mask=~key_mask)[0])


def test_extend_refuses_what_cannot_follow():
    attn = Softmax(num_heads=3, head_dim=8, max_len=20, causal=True)
    q, k, v = inputs(15, 15)
    _, state = attn.extend(q, k, v)
    with pytest.raises(ValueError, match=r"15 \+ 6 tokens exceed max_len=20"):
        attn.extend(q[:, :, :6], k[:, :, :6], v[:, :, :6], state)
    with pytest.raises(ValueError, match="batch"):
        attn.extend(q[:1, :, :2], k[:1, :, :2], v[:1, :, :2], state)
    with pytest.raises(ValueError, match="causal=True"):
        Softmax(num_heads=3, head_dim=8, max_len=20, causal=False).extend(q, k, v)
    with pytest.raises(ValueError, match="seen missing"):
        KeyValueState.from_state_dict({"k": k, "v": v})
