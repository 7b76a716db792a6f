"""Decay in JAX against the definition pair by pair in float64: outputs, gradients, states, refusals."""

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jax
from cosformer.jax import CosformerAttention, LinearState, cosformer_attention
from cosformer.jax.sums import chunk_length
from ops.definition import attend_pairs

BOUNDS = [0, 5, 5, 134, 300]
IDS = jnp.asarray(np.repeat(np.arange(4), np.diff(BOUNDS))[None])


def rates(heads, channels, largest=4.0):
    """From none over one in a million to the largest, in another order for each head."""
    some = np.concatenate([[0.0], np.geomspace(1e-6, largest, channels - 1)])
    return np.stack([np.roll(some, 3 * head) for head in range(heads)])


def wrap(x):
    return torch.from_numpy(np.array(x, np.float64)).requires_grad_()


def check(arrays, options, exact_options, limit=1e-11, state=None):
    """Outputs, states and gradients of one call."""
    decay = options["decay"]
    leaves = [wrap(x) for x in (*arrays, *(state or ()))]
    known = {"length": 512, "decay": None if decay is None else torch.from_numpy(decay), **exact_options}
    exact, _, kv, z = attend_pairs(*leaves[:3], state=leaves[3:] or None, **known)
    position = jnp.asarray(known.get("first", 0), jnp.int32)

    def call(q, k, v, *before):
        before = LinearState(*before, position, 512, decay) if before else None
        return cosformer_attention(q, k, v, max_len=512, state=before, **options)

    found, back = jax.vjp(call, *(jnp.asarray(x.detach().numpy()) for x in leaves))
    results = (found[0], found[1].kv, found[1].z) if options.get("return_state") else (found,)
    wanted = (exact, kv, z)[: len(results)]
    random = np.random.default_rng(2)
    weights = [random.standard_normal(x.shape) for x in results]
    loss = sum((x * torch.from_numpy(w)).sum() for x, w in zip(wanted, weights, strict=True))
    cotangent = jnp.asarray(weights[0])
    if options.get("return_state"):
        nothing = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), found[1].position)
        after = LinearState(
            *map(jnp.asarray, weights[1:]), nothing, 512, jnp.zeros_like(decay) if decay is not None else None
        )
        cotangent = (cotangent, after)
    gradients = back(cotangent)
    for ours, theirs in zip((*results, *gradients), (*wanted, *torch.autograd.grad(loss, leaves)), strict=True):
        theirs = theirs.detach().numpy()
        np.testing.assert_allclose(ours, theirs, atol=limit * max(1.0, np.abs(theirs).max(initial=0)))
    return gradients


@pytest.mark.parametrize("largest", [4.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (1.0, 1e-3))])
@pytest.mark.parametrize("causal", [False, True])
def test_whole_sequences(make, causal, largest):
    """Chunks of 16, 64 and 128."""
    options = {"causal": causal, "decay": rates(2, 8, largest)}
    check(make(2, 4, 2, 300, 300, 8, 6), options, {"causal": causal})


def test_chunks_keep_factors_in_range():
    assert [chunk_length(x) for x in (0.0, 1e-6, 0.5, 0.6, 1.0, 3.9, 4.0, None)] == [128, 128, 128, 64, 64, 16, 16, 16]


def in_part_slow(*quick):
    """All combinations of three switches, of which a few are quick."""
    return [
        pytest.param(*case, marks=() if case in quick else pytest.mark.slow)
        for case in product([False, True], repeat=3)
    ]


@pytest.mark.parametrize(("causal", "packed", "masked"), in_part_slow((True, True, True), (False, True, True)))
def test_masked_and_packed(make, causal, packed, masked):
    options, exact = {"causal": causal, "decay": rates(2, 8)}, {"causal": causal}
    mask = np.random.default_rng(3).random((1, 300)) > 0.3
    if masked:
        options["key_mask"], exact["key_mask"] = jnp.asarray(mask), torch.from_numpy(mask)
    if packed:
        options["segment_ids"], exact["cu_seqlens"] = IDS, torch.tensor(BOUNDS)
    _, dk, dv = check(make(1, 4, 2, 300, 300, 8, 6), options, exact)
    if masked:
        assert not np.asarray(dk)[:, :, ~mask[0]].any() and not np.asarray(dv)[:, :, ~mask[0]].any()


@pytest.mark.parametrize(("masked", "leads", "decays"), in_part_slow((True, True, True), (True, False, False)))
def test_states_in_and_out(make, masked, leads, decays):
    """With and without decay; the loss has a term in the returned state, without which a missing mask can go unseen."""
    n, lead = 150, 70 if leads else 0
    q, k, v = make(2, 4, 2, n, n + lead, 8, 6)
    mask = np.random.default_rng(3).random((2, n + lead)) > 0.3
    random = np.random.default_rng(4)
    state = random.random((2, 2, 16, 6)), random.random((2, 2, 16))
    options = {"causal": True, "decay": rates(2, 8) if decays else None, "return_state": True, "q_offset": lead}
    exact = {"causal": True, "first": 60}
    if masked:
        options["key_mask"], exact["key_mask"] = jnp.asarray(mask), torch.from_numpy(mask)
    gradients = check((q, k, v), options, exact, state=state)
    if masked:
        hidden = ~mask[:, None, :].repeat(2, 1)
        assert not any(np.asarray(x)[hidden].any() for x in gradients[1:3])


@pytest.mark.parametrize("cuts", [pytest.param([16, 17], marks=pytest.mark.slow), [1, 5, 5, 133, 299]], ids=str)
def test_any_split_into_states_gives_the_same(make, cuts):
    n = 300
    q, k, v = map(jnp.asarray, make(2, 4, 2, n, n, 4, 3))
    call = {"causal": True, "max_len": 320, "return_state": True, "decay": rates(2, 4)}
    whole, end = cosformer_attention(q, k, v, **call)
    state, parts = None, []
    for a, b in zip([0, *cuts], [*cuts, n], strict=True):
        out, state = cosformer_attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], state=state, **call)
        parts.append(out)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=2), whole, atol=1e-13)
    np.testing.assert_allclose(state.kv, end.kv, rtol=1e-12, atol=1e-13)
    back = LinearState.from_numpy(state.to_numpy())
    np.testing.assert_array_equal(back.decay, call["decay"])


def test_steps_under_jit_with_a_donated_state(make):
    q, k, v = map(jnp.asarray, make(1, 2, 2, 40, 40, 4, 4))
    decay = rates(2, 4)
    call = {"causal": True, "max_len": 64, "decay": decay}
    step = jax.jit(
        lambda q, k, v, state: cosformer_attention(q, k, v, state=state, return_state=True, **call), donate_argnums=3
    )
    state, outs = LinearState.empty(1, 2, 4, 4, 64, jnp.float64, decay), []
    for i in range(40):
        out, state = step(*(x[:, :, i : i + 1] for x in (q, k, v)), state)
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs, 2), cosformer_attention(q, k, v, **call), atol=1e-13)
    traced = jax.jit(lambda rates: cosformer_attention(q, k, v, causal=True, max_len=64, decay=rates))
    np.testing.assert_allclose(traced(jnp.asarray(decay)), cosformer_attention(q, k, v, **call), atol=1e-13)


def test_slow_rates_do_not_drift_in_single_precision(make):
    """A rate whose exp lies half way between two numbers of float32, 20,000 times."""
    rate, steps = 10.5 * 2**-24, 20_000
    x = jnp.asarray(np.random.default_rng(5).random((1, 1, steps, 2)), jnp.float32)
    decay = np.full((1, 2), rate)
    start = LinearState(jnp.full((1, 1, 4, 2), 100.0, jnp.float32), jnp.full((1, 1, 4), 100.0, jnp.float32),
                        jnp.zeros((), jnp.int32), 10**6, jnp.asarray(decay, jnp.float32))  # fmt: skip

    def step(state, token):
        token = token[:, :, None]
        return cosformer_attention(
            token, token, token, causal=True, max_len=10**6, decay=decay, state=state, return_state=True
        )[::-1]

    state, _ = jax.lax.scan(step, start, jnp.moveaxis(x, 2, 0))
    kept = np.exp(-rate * np.arange(steps)[::-1])
    keys = np.asarray(x[0, 0], np.float64)
    cos = np.cos(np.pi / 2 * np.arange(steps) / 10**6)
    exact = 100 * np.exp(-rate * steps) + (keys * (kept * cos)[:, None]).T @ keys
    assert np.abs(np.asarray(state.kv)[0, 0, :2] / exact - 1).max() < 1e-5


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 2e-6), ("bfloat16", 8e-3), ("float16", 1e-3)])
@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.slow), True])
def test_other_dtypes(make, causal, dtype, limit):
    arrays = [jnp.asarray(x, dtype) for x in make(2, 4, 2, 300, 300, 32, 16)]
    decay = rates(2, 32)
    out = cosformer_attention(*arrays, causal=causal, max_len=512, decay=decay)
    exact = attend_pairs(*map(wrap, arrays), causal=causal, length=512, decay=torch.from_numpy(decay))[0]
    assert out.dtype == jnp.dtype(dtype)
    error = np.abs(np.asarray(out, np.float64) - exact.detach().numpy()).max()
    assert error < limit * exact.abs().max().item()


def test_what_is_selected_away_may_overflow(make):
    q, k, v = (jnp.asarray(np.abs(x), jnp.float32) for x in make(1, 1, 1, 70, 70, 8, 8))
    q, k = q * 1e6, k * 1e6
    decay = np.full((1, 8), 4.0)
    found, back = jax.vjp(lambda *args: cosformer_attention(*args, causal=True, max_len=80, decay=decay), q, k, v)
    exact = attend_pairs(*map(wrap, (q, k, v)), causal=True, length=80, decay=torch.from_numpy(decay))[0]
    assert np.abs(np.asarray(found) - exact.detach().numpy()).max() < 1e-5
    assert all(bool(jnp.isfinite(x).all()) for x in back(found))


def test_rates_get_no_gradient(make):
    q, k, v = map(jnp.asarray, make(1, 2, 2, 20, 20, 4, 4))
    grad = jax.grad(lambda rates: cosformer_attention(q, k, v, causal=True, decay=rates).sum())(
        jnp.asarray(rates(2, 4))
    )
    assert not grad.any()


def test_the_module_trains_and_decodes_alike(make):
    x = jnp.asarray(np.random.default_rng(6).standard_normal((2, 20, 16)), jnp.float32)
    settings = {"num_heads": 2, "max_len": 64, "causal": True, "decay": rates(2, 8)}
    layer, decoder = CosformerAttention(**settings), CosformerAttention(**settings, decode=True)
    params = layer.init(jax.random.key(0), x)["params"]
    whole = layer.apply({"params": params}, x)
    cache = decoder.init(jax.random.key(0), x[:, :1])["cache"]
    outs = []
    for i in range(20):
        out, changed = decoder.apply({"params": params, "cache": cache}, x[:, i : i + 1], mutable=["cache"])
        cache = changed["cache"]
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs, 1), whole, atol=1e-5)
    plain = CosformerAttention(num_heads=2, max_len=64, causal=True).apply({"params": params}, x)
    assert np.abs(np.asarray(plain - whole)).max() > 1e-3


D = rates(2, 4)
WRONG = {
    "expected rates .key heads, channels. = .2, 4.": lambda *x: cosformer_attention(*x, causal=True, decay=D[:1]),
    "decay is int64": lambda *x: cosformer_attention(*x, causal=True, decay=np.ones((2, 4), int)),
    "head 0, channel 1 is -1.0; rates are from 0 to 4": lambda *x: cosformer_attention(
        *x, causal=True, decay=np.array([[0.0, -1, 0, 0]] * 2)
    ),
    "head 0, channel 0 is 4.5": lambda *x: cosformer_attention(*x, causal=True, decay=D + 4.5),
    "is nan": lambda *x: cosformer_attention(*x, causal=True, decay=D * np.nan),
    "does not go with S=6 keys of N=3": lambda q, k, v: cosformer_attention(q[:, :, :3], k, v, decay=D),
    "does not go with return_state": lambda *x: cosformer_attention(*x, max_len=8, decay=D, return_state=True),
    "does not go with q_offset": lambda *x: cosformer_attention(*x, max_len=9, decay=D, q_offset=2),
    "does not go with align": lambda *x: cosformer_attention(*x, align="proportional", decay=D),
    "D=3 is odd": lambda q, k, v: cosformer_attention(q[..., :3], k[..., :3], v, decay=D[:, :3]),
    "the state decays at other rates": lambda *x: cosformer_attention(
        *x, causal=True, max_len=16, decay=D, state=LinearState.empty(2, 2, 4, 4, 16, jnp.float64)
    ),
    "the state decays at other": lambda *x: cosformer_attention(
        *x, causal=True, max_len=16, state=LinearState.empty(2, 2, 4, 4, 16, jnp.float64, D)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        WRONG[message](*map(jnp.asarray, make(2, 4, 2, 6, 6, 4, 4)))
