"""The multi-head wrapper and the block."""

import pytest
import torch
import torch.nn.functional as F

from cosformer.attention import build_attention
from cosformer.nn.block import Block
from cosformer.nn.feed_forward import FeedForward
from cosformer.nn.multihead import MultiHead


def multihead(name: str = "softmax", causal: bool = False, hidden: int = 12) -> MultiHead:
    torch.manual_seed(0)
    return MultiHead(build_attention(name, num_heads=3, head_dim=5, max_len=32, causal=causal), hidden).double()


def test_softmax_equals_torchs_multihead():
    torch.manual_seed(0)
    ours = MultiHead(build_attention("softmax", num_heads=3, head_dim=4, max_len=32, causal=False), 12).double()
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (ours.query, ours.key, ours.value)]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in (ours.query, ours.key, ours.value)]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    keep = torch.ones(2, 7, dtype=torch.bool)
    keep[1, 5:] = False
    torch.testing.assert_close(ours(x, keep), theirs(x, x, x, key_padding_mask=~keep, need_weights=False)[0])


def test_states_where_there_are_none_are_refused():
    x = torch.randn(1, 4, 12, dtype=torch.float64)
    with pytest.raises(ValueError, match="carries no state"):
        multihead("softmax")(x, return_state=True)
    with pytest.raises(ValueError, match="carries no state"):
        multihead("sinkhorn", causal=True)(x, return_state=True)
    with pytest.raises(ValueError, match="without return_state"):
        multihead("cosformer", causal=True)(x, state=object())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_equals_torchs_layer(norm):
    torch.manual_seed(0)
    attention = MultiHead(build_attention("softmax", num_heads=3, head_dim=4, max_len=32, causal=False), 12)
    ours = Block(attention, FeedForward(12, 20, act="relu"), 12, norm=norm).double()
    theirs = torch.nn.TransformerEncoderLayer(12, 3, 20, 0.0, batch_first=True, norm_first=norm == "pre").double()
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    with torch.no_grad():
        inputs = (attention.query, attention.key, attention.value)
        theirs.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in inputs]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in inputs]))
        theirs.self_attn.out_proj.load_state_dict(attention.output.state_dict())
        theirs.linear1.load_state_dict(ours.feed_forward.widen.state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward.narrow.state_dict())
        theirs.norm1.load_state_dict(ours.attention_norm.state_dict())
        theirs.norm2.load_state_dict(ours.feed_forward_norm.state_dict())
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(ValueError, match="known: pre, post"):
        Block(attention, FeedForward(12, 20), 12, norm="none")


def test_dropout_of_the_block_acts_on_both_branches():
    attention = multihead(hidden=12)
    x = torch.randn(1, 4, 12, dtype=torch.float64)
    block = Block(attention, FeedForward(12, 20), 12, dropout=1.0).double().train()
    assert torch.equal(block(x), x)
    assert not torch.equal(block.eval()(x), x)
    assert torch.equal(F.dropout(x, 1.0), torch.zeros_like(x))
