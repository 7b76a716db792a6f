"""The JAX operator against torch's definition: outputs, gradients, states, and every refusal."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import cosformer
import jax
from cosformer.jax import LinearState, cosformer_attention

LENGTHS = [1, 2, 127, 128, 129, 300]
RANDOM = np.random.default_rng(1)
MASK = RANDOM.random((2, 300)) > 0.3
MASK[1] = False  # a row of the batch with nothing to attend to
BOUNDS = [0, 5, 5, 134, 300]
IDS = np.repeat(np.arange(4), np.diff(BOUNDS))[None]

# name -> sizes (B, H, Hk, N, S, D, E), the arguments, and what torch calls otherwise
CASES = {
    **{f"causal-{n}": ((2, 3, 3, n, n, 8, 6), {"causal": True}, {}) for n in LENGTHS},
    **{f"both-ways-{n}": ((2, 3, 3, n, n, 8, 6), {}, {}) for n in LENGTHS},
    "grouped": ((2, 6, 2, 200, 200, 8, 8), {"causal": True, "max_len": 512}, {}),
    "masked": ((2, 4, 2, 300, 300, 8, 8), {"causal": True, "max_len": 512, "key_mask": MASK}, {}),
    "masked-both-ways": ((2, 4, 2, 300, 300, 8, 8), {"max_len": 300, "key_mask": MASK}, {}),
    "cross": ((2, 4, 4, 50, 120, 8, 8), {"max_len": 512, "q_offset": 7}, {}),
    "cross-more-queries": ((1, 2, 1, 120, 50, 8, 3), {}, {}),
    "proportional": ((2, 4, 4, 50, 120, 8, 8), {"align": "proportional"}, {}),
    "proportional-equal": ((1, 2, 2, 64, 64, 8, 8), {"align": "proportional"}, {}),
    "last-queries": ((2, 4, 2, 130, 300, 8, 8), {"causal": True, "q_offset": 170}, {}),
    "packed": ((1, 4, 2, 300, 300, 8, 8), {"causal": True, "max_len": 256}, {"segment_ids": IDS}),
    "packed-both-ways": ((1, 4, 2, 300, 300, 8, 8), {"max_len": 256}, {"segment_ids": IDS}),
    "no-keys": ((1, 2, 2, 5, 0, 4, 4), {"max_len": 8}, {}),
    "no-queries": ((1, 2, 2, 0, 5, 4, 4), {"max_len": 8}, {}),
}


def to_torch(arrays, grad=False):
    return [torch.from_numpy(np.array(x)).requires_grad_(grad) for x in arrays]


def reference(arrays, options, packed):
    """Output and gradients of torch's definition in float64; ``weight`` makes the rows' gradients differ."""
    tensors = to_torch([x.astype(np.float64) for x in arrays], grad=True)
    known = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    if packed:
        known["cu_seqlens"] = torch.tensor(BOUNDS)
    out = cosformer.cosformer_attention(*tensors, backend="dense", **known)
    weight = np.random.default_rng(2).standard_normal(tuple(out.shape))
    gradients = torch.autograd.grad((out * torch.from_numpy(weight)).sum(), tensors)
    return out.detach().numpy(), weight, [x.numpy() for x in gradients]


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_equal_the_definition(make, name):
    sizes, options, extra = CASES[name]
    arrays = make(*sizes)
    out, weight, gradients = reference(arrays, options, bool(extra))
    call = {**options, **extra}
    call = {key: jnp.asarray(x) if isinstance(x, np.ndarray) else x for key, x in call.items()}
    found, back = jax.vjp(lambda *args: cosformer_attention(*args, **call), *map(jnp.asarray, arrays))
    assert found.shape == out.shape and found.dtype == jnp.float64
    if out.size == 0:
        return
    np.testing.assert_allclose(found, out, atol=1e-12)
    for ours, theirs in zip(back(jnp.asarray(weight)), gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-11 * max(1.0, np.abs(theirs).max(initial=0)))


SPLITS = [[1], [128], [5, 5, 133, 299], *(sorted(RANDOM.integers(0, 301, 4).tolist()) for _ in range(4))]


@pytest.mark.parametrize("cuts", SPLITS, ids=str)
def test_any_split_into_states_gives_the_same(make, cuts):
    n = 300
    q, k, v = map(jnp.asarray, make(2, 4, 2, n, n, 4, 3))
    mask = jnp.asarray(np.random.default_rng(n).random((2, n)) > 0.2)
    whole, end = cosformer_attention(q, k, v, causal=True, max_len=320, key_mask=mask, return_state=True)
    state, parts = None, []
    for a, b in zip([0, *cuts], [*cuts, n], strict=True):
        part = (q[:, :, a:b], k[:, :, a:b], v[:, :, a:b])
        out, state = cosformer_attention(
            *part, causal=True, max_len=320, key_mask=mask[:, a:b], state=state, return_state=True
        )
        parts.append(out)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=2), whole, atol=1e-13)
    np.testing.assert_allclose(state.kv, end.kv, rtol=1e-12, atol=1e-13)
    assert state.seen == end.seen == n


def test_a_state_goes_to_torch_and_back(make):
    q, k, v = make(2, 4, 2, 90, 90, 8, 6)
    first = [jnp.asarray(x[:, :, :60]) for x in (q, k, v)]
    _, ours = cosformer_attention(*first, causal=True, max_len=128, return_state=True)
    arrays = ours.to_numpy()
    theirs = cosformer.LinearState.from_state_dict({name: torch.from_numpy(x) for name, x in arrays.items()})
    rest = to_torch([x[:, :, 60:] for x in (q, k, v)])
    out, after = cosformer.cosformer_attention(*rest, causal=True, max_len=128, state=theirs, return_state=True)
    whole = cosformer_attention(*map(jnp.asarray, (q, k, v)), causal=True, max_len=128)
    np.testing.assert_allclose(out.numpy(), whole[:, :, 60:], atol=1e-13)
    back = LinearState.from_numpy({name: x.numpy() for name, x in after.state_dict().items()})
    assert back.seen == 90 and back.max_len == 128
    np.testing.assert_array_equal(back.kv, after.kv.numpy())
    with pytest.raises(ValueError, match="not a saved state: kv"):
        LinearState.from_numpy({name: x for name, x in arrays.items() if name != "kv"})
    with pytest.raises(ValueError, match="format 7"):
        LinearState.from_numpy(arrays | {"format": np.asarray(7)})


def test_cached_cross_attention_one_query_at_a_time(make):
    q, k, v = map(jnp.asarray, make(2, 4, 2, 40, 90, 8, 6))
    _, state = cosformer_attention(q[:, :, :0], k, v, max_len=128, return_state=True)
    whole = cosformer_attention(q, k, v, max_len=128)
    nothing = k[:, :, :0], v[:, :, :0]
    step = jax.jit(lambda q, i: cosformer_attention(q, *nothing, max_len=128, q_offset=i, state=state))
    steps = [step(q[:, :, i : i + 1], i) for i in range(40)]
    np.testing.assert_allclose(jnp.concatenate(steps, axis=2), whole, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_not_finite_under_the_mask_leaves_no_trace(make, causal):
    q, k, v = make(2, 4, 2, 150, 150, 8, 6)
    mask = np.random.default_rng(3).random((2, 150)) > 0.3
    bad_k, bad_v = k.copy(), v.copy()
    bad_k[~mask[:, None].repeat(2, 1)], bad_v[~mask[:, None].repeat(2, 1)] = np.nan, np.inf

    def loss(q, k, v):
        out, state = cosformer_attention(
            q, k, v, causal=causal, max_len=150, key_mask=jnp.asarray(mask), return_state=True
        )
        return (out**2).sum() + state.kv.sum()

    good = jax.value_and_grad(loss, (0, 1, 2))(*map(jnp.asarray, (q, k, v)))
    bad = jax.value_and_grad(loss, (0, 1, 2))(*map(jnp.asarray, (q, bad_k, bad_v)))
    jax.tree.map(np.testing.assert_array_equal, good, bad)
    assert not np.asarray(bad[1][1])[~mask[:, None].repeat(2, 1)].any()


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-6), ("bfloat16", 8e-3), ("float16", 1e-3)])
def test_other_dtypes(make, dtype, limit):
    arrays = [jnp.asarray(x, dtype) for x in make(2, 4, 2, 400, 400, 32, 16)]
    out = cosformer_attention(*arrays, causal=True)
    exact = reference([np.asarray(x, np.float64) for x in arrays], {"causal": True}, False)[0]
    assert out.dtype == jnp.dtype(dtype)
    assert np.abs(np.asarray(out, np.float64) - exact).max() < limit * np.abs(exact).max()


def test_far_keys_keep_their_weight_in_single_precision():
    """One live key at position 0 and a query at the far end: its weight is cos near pi/2; the value returns."""
    code = """
import jax.numpy as jnp, numpy as np
from cosformer.jax import cosformer_attention
n = 65_536
k = np.full((1, 1, n, 2), -1, np.float32); k[0, 0, 0] = 1
v = np.zeros((1, 1, n, 1), np.float32); v[0, 0, 0] = 3
q = np.ones((1, 1, n, 2), np.float32)
q, k, v = jnp.asarray(q), jnp.asarray(k), jnp.asarray(v)
out, state = cosformer_attention(q, k, v, causal=True, max_len=n, return_state=True)
assert out.dtype == jnp.float32
print(float(np.abs(np.asarray(out) / 3 - 1).max()))
k, v = k.at[0, 0, 1].set(1), v.at[0, 0, 1].set(5)  # two keys: the ratio of their weights shows
out = np.asarray(cosformer_attention(q, k, v, causal=True, max_len=n), np.float64)[0, 0, 1:, 0]
i = np.arange(1, n); a, b = np.cos(np.pi / 2 * i / n), np.cos(np.pi / 2 * (i - 1) / n)
print(float(np.abs(out / ((3 * a + 5 * b) / (a + b)) - 1).max()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # without x64, as users run it
    assert done.returncode == 0, done.stderr
    one, two = map(float, done.stdout.split())
    assert one < 1e-6 and two < 1e-6


def test_vmap_checkpoint_and_jit_give_the_same(make):
    q, k, v = map(jnp.asarray, make(6, 4, 2, 140, 140, 8, 6))
    whole = cosformer_attention(q, k, v, causal=True)
    split = [x.reshape(2, 3, *x.shape[1:]) for x in (q, k, v)]
    mapped = jax.vmap(lambda *args: cosformer_attention(*args, causal=True))(*split)
    np.testing.assert_allclose(mapped.reshape(whole.shape), whole, atol=1e-14)

    def loss(q):
        return (cosformer_attention(q, k, v, causal=True) ** 2).sum()

    np.testing.assert_allclose(jax.grad(jax.checkpoint(loss))(q), jax.grad(jax.jit(loss))(q), atol=1e-14)


def test_positions_past_max_len_raise_or_give_nan_where_only_the_run_knows_them(make):
    q, k, v = map(jnp.asarray, make(1, 2, 2, 6, 6, 4, 4))
    _, state = cosformer_attention(q, k, v, causal=True, max_len=8, return_state=True)
    call = {"causal": True, "max_len": 8, "return_state": True}
    with pytest.raises(ValueError, match="12 tokens exceeds max_len=8"):
        cosformer_attention(q, k, v, state=state, **call)
    out, _ = jax.jit(lambda q, k, v, state: cosformer_attention(q, k, v, state=state, **call))(q, k, v, state)
    assert bool(jnp.isnan(out).all())  # 12 keys lie past 8: no row of this call can be trusted
    ids = jnp.zeros((1, 6), int)
    with pytest.raises(ValueError, match="6 tokens exceeds max_len=4"):
        cosformer_attention(q, k, v, max_len=4, segment_ids=ids)
    out = jax.jit(lambda ids: cosformer_attention(q, k, v, max_len=4, causal=True, segment_ids=ids))(ids)
    assert not bool(jnp.isnan(out[:, :, :4]).any()) and bool(jnp.isnan(out[:, :, 4:]).all())


@pytest.mark.parametrize(("b", "n"), [(0, 5), (2, 0), (0, 0)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["whole", "packed", "state"])
def test_nothing_gives_nothing(form, causal, b, n):
    x = jnp.ones((b, 2, n, 4))
    options = {"segment_ids": jnp.zeros((b, n), int)} if form == "packed" else {"return_state": form == "state"}

    def call(x, decay=None):
        return cosformer_attention(x, x, x, causal=causal, max_len=9, decay=decay, **options)

    for found in (call(x), call(x, np.ones((2, 4))) if causal else call(x)):
        out = found[0] if form == "state" else found
        assert out.shape == x.shape and (form != "state" or found[1].seen == n)
    assert jax.grad(lambda x: sum(y.sum() for y in jax.tree.leaves(call(x)) if y.ndim))(x).shape == x.shape


WRONG = {
    "3 dimensions": lambda q, k, v: cosformer_attention(q[0], k, v),
    "int64; expected float64": lambda q, k, v: cosformer_attention(q.astype(int), k, v),
    "must be equal": lambda q, k, v: cosformer_attention(q.astype("float32"), k, v),
    "batch sizes": lambda q, k, v: cosformer_attention(q[:1], k, v),
    "4 channels and k has 3": lambda q, k, v: cosformer_attention(q, k[..., :3], v),
    "k has 2 heads of 6": lambda q, k, v: cosformer_attention(q, k, v[:, :, :5]),
    "multiple of the second": lambda q, k, v: cosformer_attention(q[:, :3], k, v),
    "both need at least 1": lambda q, k, v: cosformer_attention(q[..., :0], k[..., :0], v),
    "key_mask is int64": lambda q, k, v: cosformer_attention(q, k, v, max_len=8, key_mask=jnp.ones((2, 6), int)),
    "key_mask has shape": lambda q, k, v: cosformer_attention(q, k, v, max_len=8, key_mask=jnp.ones((2, 5), bool)),
    "key_mask given without max_len": lambda q, k, v: cosformer_attention(q, k, v, key_mask=jnp.ones((2, 6), bool)),
    "return_state given without max_len": lambda q, k, v: cosformer_attention(q, k, v, return_state=True),
    r"max_len=8\.0": lambda q, k, v: cosformer_attention(q, k, v, max_len=8.0),
    "max_len=9223372036854775808": lambda q, k, v: cosformer_attention(q, k, v, max_len=2**63),
    "exceeds max_len=4": lambda q, k, v: cosformer_attention(q, k, v, max_len=4),
    "q_offset=-1": lambda q, k, v: cosformer_attention(q, k, v, max_len=8, q_offset=-1),
    "pass q_offset=S-N=4": lambda q, k, v: cosformer_attention(q[:, :, :2], k, v, causal=True),
    "align='sideways'": lambda q, k, v: cosformer_attention(q, k, v, align="sideways"),
    "does not go with causal": lambda q, k, v: cosformer_attention(q, k, v, align="proportional", causal=True),
    "eps=0": lambda q, k, v: cosformer_attention(q, k, v, eps=0),
    "segment_ids is int64": lambda q, k, v: cosformer_attention(q, k, v, max_len=8, segment_ids=jnp.ones((2, 5), int)),
    "does not go with return_state": lambda q, k, v: cosformer_attention(
        q, k, v, max_len=8, segment_ids=jnp.ones((2, 6), int), return_state=True
    ),
    "state is a tuple": lambda q, k, v: cosformer_attention(q, k, v, causal=True, max_len=16, state=(q, k)),
    "state holds kv": lambda q, k, v: cosformer_attention(
        q, k, v, causal=True, max_len=16, state=LinearState.empty(2, 2, 3, 4, 16, jnp.float64)
    ),
    "the state is float32": lambda q, k, v: cosformer_attention(
        q, k, v, causal=True, max_len=16, state=LinearState.empty(2, 2, 4, 4, 16)
    ),
    "made with max_len=32": lambda q, k, v: cosformer_attention(
        q, k, v, causal=True, max_len=16, state=LinearState.empty(2, 2, 4, 4, 32, jnp.float64)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_named(make, message):
    q, k, v = map(jnp.asarray, make(2, 4, 2, 6, 6, 4, 4))
    with pytest.raises(ValueError, match=message):
        WRONG[message](q, k, v)
