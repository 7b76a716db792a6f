"""The feature-map attentions against the dense matrix that defines them, and what the whole family promises."""

import math

import pytest
import torch
import torch.nn.functional as F

from cosformer.attention import build_attention

GATED = ["rfa_gate_gaussian", "rfa_gate_arccos"]  # causal only
FAMILY = ["cosformer", "relu", "leaky_relu", "identity", "linear", "performer", "rfa_gaussian", "rfa_arccos"]
FAMILY += [*GATED, "rotary_linear", "spe"]
D, MAX_LEN = 8, 400  # longer than the length up to which the operator takes the dense form


def build(name, causal, max_len=MAX_LEN, **options):
    torch.manual_seed(0)
    attn = build_attention(name, num_heads=2, head_dim=D, max_len=max_len, causal=causal, **options)
    return attn.double().eval()


def inputs(n, s=None, batch=2):
    generator = torch.Generator().manual_seed(1)
    shapes = ((n, D), (s or n, D), (s or n, 5))
    # a positive mean keeps the row sums of the signed maps away from zero
    return [torch.randn(batch, 2, *shape, dtype=torch.float64, generator=generator) + 1.5 for shape in shapes]


def cosine(n, s):
    angle = torch.arange(max(n, s), dtype=torch.float64) * (math.pi / 2 / MAX_LEN)
    return (angle[:n, None] - angle[:s]).cos()


# name -> (scores of q and k before the mask, what the row sum becomes)
DENSE = {
    "cosformer": (
        lambda q, k: q.relu() @ k.relu().mT * cosine(q.shape[2], k.shape[2]),
        lambda den: den.clamp_min(1e-6),
    ),
    "relu": (lambda q, k: q.relu() @ k.relu().mT, lambda den: den.clamp_min(1e-6)),
    "leaky_relu": (lambda q, k: F.leaky_relu(q, 0.01) @ F.leaky_relu(k, 0.01).mT, lambda den: den),
    "identity": (lambda q, k: q @ k.mT, lambda den: den),
    "linear": (lambda q, k: (F.elu(q) + 1) @ (F.elu(k) + 1).mT, lambda den: den + 1e-6),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", ["bidirectional", "causal", "cross"])
@pytest.mark.parametrize("name", DENSE)
def test_it_is_the_dense_form(name, form, masked, assert_same_attention):
    scores, divisor = DENSE[name]
    q, k, v = inputs(300, 390 if form == "cross" else 300)
    allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if form == "causal":
        allowed = allowed.tril()
    key_mask = None
    if masked:
        key_mask = torch.arange(k.shape[2]) % 7 != torch.tensor([[3], [5]])
        allowed = allowed & key_mask[:, None, None]

    def dense(q, k, v):
        weights = scores(q, k) * allowed
        return weights @ v / divisor(weights.sum(-1, keepdim=True))

    attn = build(name, form == "causal")
    assert_same_attention(lambda q, k, v: attn(q, k, v, key_mask), dense, q, k, v, atol=1e-10)


def test_leaky_relu_takes_its_slope():
    q, k, v = inputs(20)
    weights = F.leaky_relu(q, 0.3) @ F.leaky_relu(k, 0.3).mT
    torch.testing.assert_close(
        build("leaky_relu", False, slope=0.3)(q, k, v), weights @ v / weights.sum(-1, keepdim=True)
    )


@pytest.mark.parametrize("name", ["identity", "leaky_relu"])
def test_row_sums_keep_their_sign(name):
    attn = build(name, False)
    q, k, v = inputs(20)
    negative = -q.abs()
    row_sums = attn.phi(negative) @ attn.phi(k.abs()).mT.sum(-1, keepdim=True)
    assert (row_sums < 0).all()
    weights = attn.phi(negative) @ attn.phi(k.abs()).mT
    torch.testing.assert_close(attn(negative, k.abs(), v), weights @ v / row_sums)
    opposite = torch.cat((k, -k), dim=2)  # sums of exactly zero for the identity
    assert attn(q, opposite, torch.cat((v, v), dim=2)).isfinite().all()


def test_linear_adds_its_eps_to_the_row_sum():
    q, k, _ = (torch.full_like(x, -7.0) for x in inputs(3))
    row_sum = 3 * D * math.exp(-14)  # about twenty times eps
    weights = build("linear", False)(q, k, torch.eye(3, dtype=torch.float64).expand(2, 2, 3, 3))
    expected = torch.full_like(weights.sum(-1), row_sum / (row_sum + 1e-6))
    torch.testing.assert_close(weights.sum(-1), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", FAMILY)
def test_a_stream_ends_at_max_len(name):
    attn = build(name, True, max_len=12)
    _, state = attn.extend(*inputs(10))
    attn.extend(*inputs(2), state)
    with pytest.raises(ValueError, match=r"10 \+ 3 tokens exceed max_len=12"):
        attn.extend(*inputs(3), state)
    with pytest.raises(ValueError, match="causal=True"):
        build("linear", False).extend(*inputs(3))


@pytest.mark.parametrize("name", FAMILY)
def test_a_state_of_other_sizes_is_refused(name):
    attn = build(name, True)
    _, state = attn.extend(*inputs(4))
    with pytest.raises(ValueError, match="state holds"):
        attn.extend(*inputs(4, batch=3), state)


@pytest.mark.parametrize("name", FAMILY)
def test_half_precision_is_as_good_as_its_rounding(name):
    attn = build(name, True)
    half = [x.to(torch.bfloat16) for x in inputs(300)]
    expected = attn(*(x.double() for x in half))
    actual = attn.float()(*half)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.double(), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("name", sorted(set(FAMILY) - {"cosformer"}))
def test_autocast_leaves_the_map_in_full_precision(name):
    attn = build(name, True).float()
    q, k, v = (x.float() for x in inputs(300))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = attn(q, k, v)
    torch.testing.assert_close(actual, attn(q, k, v), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["cosformer", "relu", "linear", "performer"])
def test_grouped_keys_equal_repeated_ones(name, causal):
    attn = build_attention(name, num_heads=6, head_dim=D, max_len=MAX_LEN, causal=causal).double().eval()
    assert attn.grouped
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, 300, D, dtype=torch.float64, generator=generator) for heads in (6, 2, 2))
    expected = attn(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1))
    assert (attn(q, k, v) - expected).abs().max() < 1e-12
    if causal:
        first, state = attn.extend(q[:, :, :200], k[:, :, :200], v[:, :, :200])
        last, _ = attn.extend(q[:, :, 200:], k[:, :, 200:], v[:, :, 200:], state)
        assert (torch.cat([first, last], 2) - expected).abs().max() < 1e-12
        assert state.kv.shape[1] == 2
