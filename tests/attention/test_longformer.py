"""Longformer against Hugging Face's module and the dense definition."""

import pytest
import torch

from cosformer.attention.longformer import Longformer

HEADS, DIM, WINDOW = 2, 8, 32


def build(n, causal=False, num_global=0, window=WINDOW):
    torch.manual_seed(3)
    sizes = {"num_heads": HEADS, "head_dim": DIM, "max_len": n}
    attn = Longformer(**sizes, causal=causal, window=window, num_global=num_global).double()
    if num_global:
        attn.global_maps.data += 0.3 * torch.randn_like(attn.global_maps)
    return attn


def heads(x):
    return x.unflatten(-1, (HEADS, DIM)).transpose(1, 2)


def hugging_face(attn, n):
    """HF's self-attention with our maps folded into its global projections."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = transformers.LongformerConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, attention_window=[WINDOW], attention_probs_dropout_prob=0.0
    )
    module = LongformerSelfAttention(config, 0).double()
    if attn.num_global:
        with torch.no_grad():
            for kind, maps in zip(("query", "key", "value"), attn.global_maps, strict=True):
                local, own = getattr(module, kind), getattr(module, f"{kind}_global")
                own.weight.copy_((maps.mT @ local.weight.unflatten(0, (HEADS, DIM))).flatten(0, 1))
                own.bias.copy_((local.bias.unflatten(0, (HEADS, 1, DIM)) @ maps).flatten())
    return module


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_global", [0, 1, 5, 40])
def test_it_is_hugging_faces(num_global, masked, assert_same_attention):
    n = 4 * WINDOW
    attn = build(n, num_global=num_global)
    module = hugging_face(attn, n)
    key_mask = torch.ones(2, n, dtype=torch.bool)
    if masked:
        key_mask[0, -15:] = False  # a window without a key gives HF gradients of NaN in float64
        key_mask[1, 60::3] = False
    is_global = (torch.arange(n) < num_global).expand(2, n)

    def ours(x):
        q, k, v = (heads(project(x)) for project in (module.query, module.key, module.value))
        return attn(q, k, v, key_mask).transpose(1, 2).flatten(2) * key_mask[..., None]

    def theirs(x):
        out = module(
            x,
            attention_mask=10000.0 * (is_global.double() - (~key_mask).double()),
            is_index_masked=~key_mask,
            is_index_global_attn=is_global,
            is_global_attn=num_global > 0,
        )[0]
        return out * key_mask[..., None]  # rows of padding are nobody's business

    torch.manual_seed(0)
    # HF takes its softmax in float32 whatever the inputs are
    assert_same_attention(ours, theirs, torch.randn(2, n, HEADS * DIM, dtype=torch.float64), atol=5e-7)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_global", [0, 3, 70])
@pytest.mark.parametrize("n", [1, 50, 75, 200])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_dense_definition(causal, n, num_global, masked, masked_softmax_attention, assert_same_attention):
    attn = build(200, causal, num_global, window=20)
    key_mask = torch.arange(n) % 4 != 2 if masked else torch.ones(n, dtype=torch.bool)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    reach = key_mask & (j <= i) if causal else key_mask.expand(n, n)

    def dense(q, k, v, *maps):
        local = masked_softmax_attention(q, k, v, reach & (((i - j).abs() <= 10) | (j < num_global)))
        if not maps:
            return local
        query_map, key_map, value_map = maps[0]
        full = masked_softmax_attention(q @ query_map, k @ key_map, v @ value_map, reach)
        return torch.where(i < num_global, full, local)

    def ours(q, k, v, *maps):
        return torch.func.functional_call(
            attn, {"global_maps": maps[0]} if maps else {}, (q, k, v, key_mask.expand(2, n) if masked else None)
        )

    torch.manual_seed(0)
    inputs = [torch.randn(2, HEADS, n, DIM, dtype=torch.float64) for _ in range(3)]
    assert_same_attention(ours, dense, *inputs, *([attn.global_maps] if num_global else []), atol=1e-11)


def test_the_maps_start_at_the_identity():
    sizes = {"num_heads": HEADS, "head_dim": DIM, "max_len": 64, "causal": False}
    attn = Longformer(**sizes, window=8, num_global=2)
    assert torch.equal(attn.global_maps, torch.eye(DIM).expand(3, HEADS, DIM, DIM))
    assert not list(Longformer(**sizes).parameters())


def test_global_maps_need_values_as_wide_as_keys():
    q = torch.randn(1, HEADS, 10, DIM)
    with pytest.raises(ValueError, match="v has 3 channels"):
        build(64, num_global=1)(q, q, q[..., :3])
