"""Decay: every form against the definition, states, splits, packing, rates, refusals."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosformer import LinearState, cosformer_attention
from cosformer.ops import linear_attention
from cosformer.ops.backends import available_backends

BACKENDS = ["auto", *available_backends()]
RATES = (0.0, 1e-6, 1e-3, 0.1, 1.0, 4.0)


def rates(key_heads=2, channels=6, dtype=torch.float64):
    """Every rate at another channel of each head, so that either direction has fast and slow ones."""
    row = torch.tensor(RATES, dtype=dtype).repeat(-(-channels // len(RATES)))[:channels]
    return torch.stack([row.roll(head) for head in range(key_heads)])


def write_out(q, k, v, decay, *, causal, max_len=0, key_mask=None, relu=True, eps=1e-6):
    """The definition, pair by pair and channel by channel, in float64; queries are the last N of S positions."""
    q, k, v, decay = (x.double() for x in (q, k, v, decay))
    groups = q.shape[1] // k.shape[1]
    k, v, decay = (x.repeat_interleave(groups, dim) for x, dim in ((k, 1), (v, 1), (decay, 0)))
    (n, d), s = q.shape[2:], k.shape[2]
    distance = torch.arange(s - n, s)[:, None].double() - torch.arange(s)
    left = torch.arange(d) < (d if causal else d // 2)
    seen = torch.where(left, (distance >= 0)[..., None], (distance <= 0)[..., None])
    factor = torch.exp(-decay[:, None, None] * distance.abs()[..., None]) * seen
    q, k = (q.relu(), k.relu()) if relu else (q, k)
    scores = torch.einsum("bhnd,bhsd,hnsd->bhns", q, k, factor)
    if max_len:
        scores = scores * torch.cos(math.pi / 2 * distance / max_len)
    if key_mask is not None:
        scores = torch.where(key_mask[:, None, None], scores, 0)
    return scores @ v / scores.sum(-1, keepdim=True).clamp_min(eps)


@pytest.fixture
def decay(dtype):
    return rates(dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("n", "s", "causal"), [(1, 1, True), (37, 37, True), (270, 300, True), (37, 37, False), (300, 300, False)]
)
def test_every_form_is_the_definition(tensors, close_with_gradients, decay, n, s, causal, masked, backend):
    q, k, v = tensors(2, 4, 2, n, s, 6, 5)
    mask = torch.rand(2, s) > 0.3 if masked else None
    options = {"causal": causal, "key_mask": mask}
    out = cosformer_attention(q, k, v, max_len=400, q_offset=s - n, decay=decay, backend=backend, **options)
    close_with_gradients(out, write_out(q, k, v, decay, max_len=400, **options), (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("angles", [False, True])
def test_packed_sequences_restart(tensors, close_with_gradients, decay, causal, angles, backend):
    lengths = [5, 0, 200, 1, 130]
    q, k, v = tensors(1, 4, 2, sum(lengths), sum(lengths), 6, 5)
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)])
    options = {"causal": causal, "cu_seqlens": cu, "decay": decay, "backend": backend}
    if angles:
        out = cosformer_attention(q, k, v, max_len=256, **options)
    else:
        out = linear_attention(q, k, v, relu=True, **options)
    parts = zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True)
    expected = [write_out(*part, decay, causal=causal, max_len=256 if angles else 0) for part in parts]
    close_with_gradients(out, torch.cat(expected, dim=2), (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cuts", [[1, 2, 3, 140, 299], list(range(1, 300))], ids=["some", "every token"])
def test_splits_give_the_whole(tensors, close_with_gradients, decay, cuts, backend):
    q, k, v = tensors(2, 4, 2, 300, 300, 6, 5)
    outs, state = [], None
    for a, b in zip([0, *cuts], [*cuts, 300], strict=True):
        part = (x[:, :, a:b] for x in (q, k, v))
        options = {"causal": True, "max_len": 400, "decay": decay, "return_state": True, "backend": backend}
        out, state = cosformer_attention(*part, state=state, **options)
        outs.append(out)
    assert state.decay is decay
    close_with_gradients(torch.cat(outs, dim=2), write_out(q, k, v, decay, causal=True, max_len=400), (q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_a_rate_of_zero_is_no_decay_where_channels_look_back(tensors, close, causal):
    q, k, v = tensors(1, 2, 2, 300, 300, 6, 5, grad=False)
    out = cosformer_attention(q, k, v, causal=causal, max_len=300, decay=torch.zeros(2, 6, dtype=q.dtype))
    if causal:
        close(out, cosformer_attention(q, k, v, causal=True, max_len=300), 1e-12)
    else:  # a token still sees itself twice, and others with one half of the channels
        close(out, write_out(q, k, v, torch.zeros(2, 6), causal=False, max_len=300), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_lower_precision_stays_close(causal, dtype):
    q, k, v = (torch.randn(1, 2, 600, 6).to(dtype) for _ in range(3))
    k[..., 0] = 1.0
    expected = write_out(q, k, v, rates(dtype=torch.float32), causal=causal, max_len=600)
    out = cosformer_attention(q, k, v, causal=causal, max_len=600, decay=rates(dtype=torch.float32))
    assert out.dtype == dtype
    limit = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    assert ((out.double() - expected).abs() <= limit * v.double().abs().max()).all()


@pytest.mark.parametrize(("n", "limit"), [(100_000, 2e-6), pytest.param(1_000_000, 1e-5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cosine", [False, True])
def test_the_last_rows_of_a_long_sequence(n, limit, cosine):
    """Slow rates must not drift over thousands of chunks; rounding errors of a state grow with the square root."""
    decay = torch.tensor([[0.0, 1e-6, 1e-5, 1e-4, 1e-2, 4.0]])
    q, k, v = (torch.rand(1, 1, n, 6) for _ in range(3))
    if cosine:
        out = cosformer_attention(q, k, v, causal=True, max_len=n, decay=decay)[:, :, -2:]
    else:
        out = linear_attention(q, k, v, causal=True, decay=decay)[:, :, -2:]
    expected = write_out(q[:, :, -2:], k, v, decay, causal=True, max_len=n * cosine)
    assert (out.double() - expected).abs().max() <= limit


@pytest.mark.slow
@pytest.mark.parametrize("cosine", [False, True])
def test_a_hundred_thousand_tokens_one_by_one(cosine):
    """The limit is 1e-5 of the largest value, 1 here. No step can do much better: with this seed's tokens a float32
    state that is rounded once a token, and otherwise exact, ends 6e-6 away."""
    n, decay = 100_000, torch.tensor([[0.0, 1e-6, 1e-5, 1e-3, 1.0, 4.0]])
    q, k, v = (torch.rand(1, 1, n, 6) for _ in range(3))
    state, out = None, None
    for t in range(n):
        part = (x[:, :, t : t + 1] for x in (q, k, v))
        options = {"causal": True, "decay": decay, "state": state, "return_state": True}
        out, state = cosformer_attention(*part, max_len=n, **options) if cosine else linear_attention(*part, **options)
    expected = write_out(q[:, :, -1:], k, v, decay, causal=True, max_len=n * cosine)
    assert (out.double() - expected).abs().max() <= 1e-5


def test_far_keys_fade_to_zero_and_never_to_nan():
    q = k = v = torch.ones(1, 1, 3000, 2)
    mask = torch.zeros(1, 3000, dtype=torch.bool)
    mask[:, 0] = True
    out = cosformer_attention(q, k, v, causal=True, max_len=3000, key_mask=mask, decay=torch.full((1, 2), 4.0))
    assert out.isfinite().all() and out[0, 0, 0, 0] == 1 and not out[:, :, 100:].any()


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("plain", "dense")])
@pytest.mark.parametrize("causal", [False, True])
def test_second_derivatives(causal, backend):
    q, k, v = (torch.rand(1, 1, 5, 2, dtype=torch.float64).add(0.1).requires_grad_() for _ in range(3))
    decay = torch.tensor([[0.3, 2.0]], dtype=torch.float64)

    def call(q, k, v):
        return cosformer_attention(q, k, v, causal=causal, max_len=9, decay=decay, backend=backend)

    assert torch.autograd.gradcheck(call, (q, k, v)) and torch.autograd.gradgradcheck(call, (q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_vmap_keeps_the_rates_for_all(tensors, close, decay, causal):
    q, k, v = (x.detach().unflatten(0, (3, 1)) for x in tensors(3, 4, 2, 30, 30, 6, 5))

    def call(q, k, v, decay=decay):
        return cosformer_attention(q, k, v, causal=causal, max_len=30, decay=decay, backend="plain")

    close(torch.vmap(call)(q, k, v), torch.stack([call(*x) for x in zip(q, k, v, strict=True)]), 1e-12)
    with pytest.raises(ValueError, match="decay has no batch"):
        torch.vmap(call)(q, k, v, decay.expand(3, -1, -1))


def test_autocast_takes_half_precision(decay):
    q, k, v = (torch.randn(1, 2, 40, 6) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = cosformer_attention(q, k, v, causal=True, max_len=40, decay=decay.float())
    assert out.dtype == torch.bfloat16


def known_state(decay):
    x = torch.rand(1, 2, 9, 6)
    return x, cosformer_attention(x, x, x, causal=True, max_len=20, decay=decay, return_state=True)[1]


def test_a_saved_state_carries_its_rates(tmp_path):
    x, state = known_state(rates(dtype=torch.float32))
    save_file(state.state_dict(), tmp_path / "state.safetensors")
    loaded = LinearState.from_state_dict(load_file(tmp_path / "state.safetensors"))
    assert torch.equal(loaded.decay, state.decay)
    options = {"causal": True, "max_len": 20, "decay": rates(dtype=torch.float32), "return_state": True}
    one = [x[:, :, :1]] * 3
    assert torch.equal(*(cosformer_attention(*one, state=s, **options)[0] for s in (state, loaded)))


def test_a_state_of_format_1_has_rates_of_zero():
    x, state = known_state(None)
    old = LinearState.from_state_dict(state.state_dict() | {"format": torch.tensor(1)})
    assert old.decay is None
    one = [x[:, :, :1]] * 3
    cosformer_attention(*one, causal=True, max_len=20, state=old, decay=torch.zeros(2, 6))


def test_states_of_other_rates_are_refused():
    x, state = known_state(rates(dtype=torch.float32))
    one = [x[:, :, :1]] * 3
    for other in (None, torch.ones(2, 6)):
        with pytest.raises(ValueError, match="made with other rates of decay"):
            cosformer_attention(*one, causal=True, max_len=20, state=state, decay=other, return_state=True)
    same = replace(state, decay=state.decay.clone())
    cosformer_attention(*one, causal=True, max_len=20, state=same, decay=state.decay, return_state=True)


X = torch.rand(1, 2, 8, 6)
MISTAKES = {
    "list": ({"decay": [1.0]}, "decay is a list"),
    "gradient": ({"decay": torch.ones(2, 6, requires_grad=True)}, "requires a gradient"),
    "shape": ({"decay": torch.ones(6)}, r"expected floats \[key heads, channels\] = \[2, 6\]"),
    "integers": ({"decay": torch.ones(2, 6, dtype=torch.int64)}, "decay is torch.int64"),
    "too fast": ({"decay": torch.tensor([[0.0] * 6, [0, 0, 4.5, 0, 0, 0]])}, "head 1, channel 2 is 4.5; rates are from "
                                                                             "0 to 4"),
    "negative": ({"decay": torch.full((2, 6), -1.0)}, "channel 0 is -1.0"),
    "nan": ({"decay": torch.full((2, 6), math.nan)}, "channel 0 is nan"),
    "state": ({"causal": False, "return_state": True}, "does not go with return_state"),
    "cross": ({"causal": False, "k": X[:, :, :5]}, "N=8 queries over S=5 keys"),
    "offset": ({"causal": False, "q_offset": 2}, "does not go with q_offset"),
    "odd": ({"causal": False, "q": X[..., :5], "k": X[..., :5], "decay": torch.ones(2, 5)}, "5 channels; use an even "
                                                                                            "number"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    options, message = MISTAKES[name]
    options = {"q": X, "k": X, "causal": True, "max_len": 20, "decay": rates(dtype=torch.float32)} | options
    q, k = options.pop("q"), options.pop("k")
    with pytest.raises(ValueError, match=message):
        cosformer_attention(q, k, X[:, :, : k.shape[2]], **options)
