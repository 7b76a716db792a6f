"""The drop-in module: the released module's numbers, nn.MultiheadAttention's calls, torch's own layers."""

import math

import pytest
import torch
from torch import nn

from cosformer import CosformerAttention, cosformer_attention

E, H = 24, 4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def module(**options):
    return CosformerAttention(E, H, **{"max_len": 64, **options}).double()


def released(parameters, query, key, value, causal, eps=1e-6):
    """The authors' module for [length, batch, channels]: heads in the batch, features [sin; cos], m = max length."""

    def heads(name, x):
        x = nn.functional.linear(x, parameters[f"{name}_proj.weight"], parameters[f"{name}_proj.bias"])
        return x.reshape(x.shape[0], x.shape[1] * H, E // H).transpose(0, 1)

    q, k, v = heads("q", query).relu(), heads("k", key).relu(), heads("v", value)
    n, s = q.shape[1], k.shape[1]
    m = max(n, s)
    index = math.pi / 2 * torch.arange(1, m + 1, dtype=q.dtype)[None, :, None]

    def features(x):
        angle = index[:, : x.shape[1]] / m
        return torch.cat([x * angle.sin(), x * angle.cos()], dim=-1)

    fq, fk = features(q), features(k)
    if causal:
        kv = torch.einsum("nld,nlm->nldm", fk, v).cumsum(1)
        z = fk.cumsum(1)
        out = torch.einsum("nld,nldm->nlm", fq, kv) / torch.einsum("nld,nld->nl", fq, z).clamp_min(eps)[..., None]
    else:
        kv = torch.einsum("nld,nlm->ndm", fk, v)
        z = torch.einsum("nld,nd->nl", fq, fk.sum(1)).clamp_min(eps)
        out = torch.einsum("nld,ndm->nlm", fq, kv) / z[..., None]
    out = out.transpose(0, 1).reshape(n, -1, E)
    return nn.functional.linear(out, parameters["out_proj.weight"], parameters["out_proj.bias"])


@pytest.mark.parametrize(("n", "s", "causal"), [(20, 20, False), (20, 20, True), (12, 30, False), (30, 12, False)])
def test_released_weights_load_and_give_the_released_numbers(n, s, causal):
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    weights = {f"{x}.weight": torch.randn(E, E, dtype=torch.float64) / 4 for x in names}
    weights |= {f"{x}.bias": torch.randn(E, dtype=torch.float64) for x in names}
    attention = module(causal=causal, max_len=max(n, s))
    attention.load_state_dict(weights)
    query, other = torch.randn(n, 3, E, dtype=torch.float64), torch.randn(s, 3, E, dtype=torch.float64)
    key = query if causal else other
    out, none = attention(query, key, key)
    assert none is None
    assert torch.allclose(out, released(weights, query, key, key, causal), atol=1e-12)
    default = CosformerAttention(E, H, causal=causal).double()
    default.load_state_dict(weights)
    assert torch.allclose(default(query, key, key)[0], out, atol=1e-12)


@pytest.mark.parametrize("batch_first", [False, True])
def test_weights_are_what_the_output_is_made_of(batch_first):
    attention = module(batch_first=batch_first, causal=True)
    x = torch.randn(2, 10, E, dtype=torch.float64)
    given = x if batch_first else x.transpose(0, 1)
    out, weights = attention(given, given, given, need_weights=True, average_attn_weights=False)
    assert weights.shape == (2, H, 10, 10) and weights.triu(1).abs().max() == 0
    v = attention.v_proj(x).unflatten(-1, (H, -1)).transpose(1, 2)
    expected = attention.out_proj((weights @ v).transpose(1, 2).flatten(2))
    assert torch.allclose(out if batch_first else out.transpose(0, 1), expected, atol=1e-12)
    _, mean = attention(given, given, given, need_weights=True)
    assert torch.allclose(mean, weights.mean(1))


def test_without_a_batch_dimension():
    attention = module()
    x = torch.randn(10, E, dtype=torch.float64)
    out, weights = attention(x, x, x, need_weights=True)
    assert out.shape == (10, E) and weights.shape == (10, 10)
    assert torch.allclose(out, attention(x[:, None], x[:, None], x[:, None])[0][:, 0])


def test_kdim_vdim_and_bias():
    attention = module(kdim=7, vdim=5, bias=False, batch_first=True)
    assert {name for name, _ in attention.named_parameters()} == {f"{x}_proj.weight" for x in ("q", "k", "v", "out")}
    shapes = ((2, 6, E), (2, 9, 7), (2, 9, 5))
    out, _ = attention(*(torch.randn(shape, dtype=torch.float64) for shape in shapes))
    assert out.shape == (2, 6, E)
    with pytest.raises(ValueError, match=r"key has shape .* with 7 channels"):
        attention(*(torch.randn(2, 6, E, dtype=torch.float64) for _ in range(3)))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_padding_mask(kind):
    attention = module(batch_first=True)
    x = torch.randn(2, 10, E, dtype=torch.float64)
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, 7:] = True
    mask = padding if kind == "bool" else torch.zeros(2, 10, dtype=torch.float64).masked_fill(padding, float("-inf"))
    out, _ = attention(x, x, x, key_padding_mask=mask)
    assert torch.allclose(out[1, :7], attention(x[1:, :7], x[1:, :7], x[1:, :7])[0][0], atol=1e-12)
    with pytest.raises(ValueError, match=r"0 .keep. and -inf"):
        attention(x, x, x, key_padding_mask=torch.full((2, 10), 0.5))


def test_attention_masks():
    attention, causal = module(batch_first=True), module(batch_first=True, causal=True)
    causal.load_state_dict(attention.state_dict())
    x = torch.randn(2, 10, E, dtype=torch.float64)
    expected, _ = causal(x, x, x)
    square = nn.Transformer.generate_square_subsequent_mask(10)
    for mask in (square, square == float("-inf")):
        for layer in (attention, causal):
            assert torch.equal(layer(x, x, x, attn_mask=mask)[0], expected)
    assert torch.equal(attention(x, x, x, attn_mask=square, is_causal=True)[0], expected)
    for bad in (torch.zeros(10, 10), square * 0.5 + 1, torch.rand(10, 10) > 0.5):
        for layer in (attention, causal):
            with pytest.raises(ValueError, match="not the causal mask"):
                layer(x, x, x, attn_mask=bad)


def test_extend_streams():
    attention = module(causal=True, batch_first=True)
    x = torch.randn(2, 20, E, dtype=torch.float64)
    whole, _ = attention(x, x, x)
    outs, state = [], None
    for piece in x.split([1, 1, 10, 8], dim=1):
        out, state = attention.extend(piece, state)
        outs.append(out)
    assert torch.allclose(torch.cat(outs, dim=1), whole, atol=1e-12) and state.seen == 20
    with pytest.raises(ValueError, match="causal=True"):
        module().extend(x)


def test_changing_max_len_changes_the_cosine_and_no_weight():
    attention = module(batch_first=True, max_len=20)
    before = {name: x.clone() for name, x in attention.state_dict().items()}
    x = torch.randn(1, 20, E, dtype=torch.float64)
    attention.set_max_len(40)
    assert all(torch.equal(x, before[name]) for name, x in attention.state_dict().items())
    q, k, v = attention._heads(x, x, x)
    assert torch.allclose(attention(x, x, x)[0], attention._merge(cosformer_attention(q, k, v, max_len=40)))
    attention(torch.randn(1, 40, E).double(), *[torch.randn(1, 40, E).double()] * 2)
    with pytest.raises(ValueError, match="40 tokens exceeds max_len=20"):
        attention.set_max_len(20)
        attention(torch.randn(1, 40, E).double(), *[torch.randn(1, 40, E).double()] * 2)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_inside_torchs_encoder(training, norm_first):
    """Our module is the one that runs, in eval too, where torch would take its fused path around it."""
    layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True, norm_first=norm_first).double()
    layer.self_attn = module(batch_first=True)
    calls = []
    layer.self_attn.register_forward_hook(lambda *args: calls.append(1))
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    x = torch.randn(2, 10, E, dtype=torch.float64)
    padding = torch.zeros(2, 10, dtype=torch.bool)
    padding[1, 6:] = True
    with torch.set_grad_enabled(training):
        out = encoder(x, src_key_padding_mask=padding)
        short = encoder(x[1:, :6])
    assert len(calls) >= 2, "the replaced attention did not run"
    assert torch.allclose(out[1, :6], short[0], atol=1e-10)
    if training:
        out.sum().backward()
        assert encoder.layers[0].self_attn.q_proj.weight.grad.any()


@pytest.mark.parametrize("training", [False, True])
def test_inside_torchs_decoder(training):
    layer = nn.TransformerDecoderLayer(E, H, 32, dropout=0.0, batch_first=True).double()
    layer.self_attn, layer.multihead_attn = module(batch_first=True, causal=True), module(batch_first=True)
    calls = []
    for attention in (layer.self_attn, layer.multihead_attn):
        attention.register_forward_hook(lambda *args: calls.append(1))
    decoder = nn.TransformerDecoder(layer, 2).train(training)
    target, memory = torch.randn(2, 10, E, dtype=torch.float64), torch.randn(2, 15, E, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(10, dtype=torch.float64)
    out = decoder(target, memory, tgt_mask=mask, tgt_is_causal=True)
    assert len(calls) == 4
    changed = target.clone()
    changed[:, 6:] += 1
    again = decoder(changed, memory, tgt_mask=mask, tgt_is_causal=True)
    assert torch.allclose(out[:, :6], again[:, :6], atol=1e-12) and not torch.allclose(out[:, 6:], again[:, 6:])


def test_bad_sizes():
    with pytest.raises(ValueError, match="embed_dim=10 does not split over num_heads=3"):
        CosformerAttention(10, 3)
    with pytest.raises(ValueError, match="max_len=0"):
        CosformerAttention(8, 2, max_len=0)
    with pytest.raises(ValueError, match="key_mask given without max_len"):
        x = torch.randn(2, 5, 8)
        CosformerAttention(8, 2, batch_first=True)(x, x, x, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool))
