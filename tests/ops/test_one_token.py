"""One token at a time: the numbers and errors of any other call, and nothing is bypassed that must see it."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cosformer import LinearState, cosformer_attention
from cosformer.ops import native
from cosformer.ops.spec import AttentionSpec, Call
from versions import traces

pytestmark = pytest.mark.skipif(not native.available(), reason=native.describe())

MAX_LEN = 50


def step(q, k, v, state, **changed):
    settings = {"causal": True, "max_len": MAX_LEN, "state": state, "return_state": True, **changed}
    return cosformer_attention(q, k, v, **settings)


def token(h=4, hk=4, d=16, e=16, b=2, dtype=torch.float32):
    return torch.randn(b, h, 1, d).to(dtype), torch.randn(b, hk, 1, d).to(dtype), torch.randn(b, hk, 1, e).to(dtype)


@pytest.fixture
def known():
    """A token, and a state that has seen two."""
    q, k, v = token()
    state = step(q, k, v, None)[1]
    return q, k, v, step(q, k, v, state)[1]


@pytest.mark.parametrize("sizes", [{}, {"h": 6, "hk": 2}, {"d": 5, "e": 7}, {"d": 64, "e": 64, "b": 1}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_give_the_definition(definition, close, sizes, dtype):
    tokens = [token(**sizes, dtype=dtype) for _ in range(30)]
    outs, state = [], None
    for q, k, v in tokens:
        out, state = step(q, k, v, state)
        outs.append(out)
    assert state.seen == 30
    q, k, v = (torch.cat(x, dim=2) for x in zip(*tokens, strict=True))
    close(
        torch.cat(outs, dim=2),
        definition(q, k, v, causal=True, max_len=MAX_LEN),
        1e-5 if dtype == torch.float32 else 1e-2,
    )


def test_the_old_state_stays_as_it_was(known):
    q, k, v, state = known
    before = LinearState(state.kv.clone(), state.z.clone(), state.position.clone(), MAX_LEN)
    first, again = step(q, k, v, state), step(q, k, v, state)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1].kv, again[1].kv)
    assert torch.equal(state.kv, before.kv) and torch.equal(state.z, before.z) and state.seen == before.seen == 2
    assert first[1].seen == 3 and first[1].kv.data_ptr() != again[1].kv.data_ptr()


def test_states_of_steps_are_ordinary_states(known):
    q, k, v, state = known
    _, state = step(q, k, v, state)
    for other in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), state.reorder(torch.tensor([0, 1]))):
        assert torch.equal(step(q, k, v, other)[0], step(q, k, v, state)[0])


def test_the_position_is_what_the_tensor_says(known):
    q, k, v, state = known
    _, state = step(q, k, v, state)
    assert state.seen == 3 and torch.equal(state.position, torch.tensor(3))
    state.position.add_(4)
    assert state.seen == 7 and step(q, k, v, state)[1].seen == 8


def test_sums_put_in_the_place_of_others_are_looked_at(known):
    q, k, v, state = known
    _, state = step(q, k, v, state)
    expected = step(q, k, v, LinearState(state.kv.clone(), 2 * state.z, state.position, MAX_LEN))[0]
    state.z.data = 2 * state.z
    assert torch.equal(step(q, k, v, state)[0], expected)
    state.kv.set_(torch.zeros(3))
    with pytest.raises(ValueError, match="state holds kv"):
        step(q, k, v, state)


@traces
def test_compiled_steps_take_the_states_of_others(known):
    q, k, v, state = known
    compiled = torch.compile(lambda q, k, v, state: step(q, k, v, state), fullgraph=True, backend="eager")
    torch._dynamo.utils.counters.clear()
    for _ in range(6):
        _, state = step(q, k, v, state)
        (out, after), (expected, _) = compiled(q, k, v, state), step(q, k, v, state)
        torch.testing.assert_close(out, expected)
        assert after.seen == state.seen + 1
        state = after
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("layout", ["heads inside", "gaps", "unaligned", "expanded"])
def test_layouts_change_nothing(known, layout):
    q, k, v, state = known

    def moved(x):
        b, h, n, d = x.shape
        if layout == "heads inside":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "gaps":
            return torch.empty(b, h, n, d + 3)[..., 2 : d + 2].copy_(x)
        if layout == "unaligned":
            return torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
        return x[:1].expand(b, h, n, d)

    if layout == "expanded":
        q, k, v = (x[:1].repeat(2, 1, 1, 1) for x in (q, k, v))
    wanted = step(q, k, v, state)
    out, after = step(moved(q), moved(k), moved(v), state)
    assert torch.equal(out, wanted[0]) and torch.equal(after.kv, wanted[1].kv) and torch.equal(after.z, wanted[1].z)
    strided = replace(state, kv=state.kv.mT.contiguous().mT, z=torch.stack([state.z, state.z], -1)[..., 0])
    assert not strided.kv.is_contiguous() and not strided.z.is_contiguous()
    assert torch.equal(step(q, k, v, strided)[0], wanted[0])


def test_gradients_are_not_lost(known):
    q, k, v, state = known
    for which in range(3):
        inputs = [x.clone().requires_grad_(i == which) for i, x in enumerate((q, k, v))]
        out, after = step(*inputs, state)
        assert torch.autograd.grad(out.sum() + after.kv.sum(), inputs[which])[0].abs().sum() > 0
    for name in ("kv", "z"):
        leaf = getattr(state, name).clone().requires_grad_()
        out, _ = step(q, k, v, replace(state, **{name: leaf}))
        assert torch.autograd.grad(out.sum(), leaf)[0].abs().sum() > 0
        with torch.no_grad():
            torch.testing.assert_close(step(q, k, v, replace(state, **{name: leaf}))[0], out)


@pytest.mark.parametrize("sizes", [{}, {"h": 6, "hk": 2, "d": 5, "e": 7}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decays", [False, True])
def test_a_token_gives_the_bits_of_the_step_kernel(sizes, dtype, decays):
    q, k, v = token(**sizes, dtype=dtype)
    rates = torch.rand(k.shape[1], k.shape[3]) if decays else None
    _, state = step(q, k, v, None, decay=rates)
    for _ in range(3):
        out, after = step(q, k, v, state, decay=state.decay)
        spec = AttentionSpec.cosine(MAX_LEN, causal=True).moved(state.seen)
        expected = native.step(Call(q, k, v, state.kv, state.z, None, None, state.decay, spec))
        for got, want in zip((out, after.kv, after.z), expected, strict=True):
            assert torch.equal(got, want) and got.dtype == want.dtype
        assert torch.equal(after.position, state.position + 1) and after.position.dtype == torch.int64
        assert after.decay is state.decay
        state = after


def test_negated_views_keep_their_sign(known):
    q, k, v, state = known
    expected = step(q, k, -v, state)[0]
    assert torch.equal(step(q, k, torch._neg_view(v), state)[0], expected)


def test_a_position_of_another_dtype_or_rank_counts(known):
    q, k, v, state = known
    for position in (torch.tensor([2]), torch.tensor(2, dtype=torch.int32)):
        out, after = step(q, k, v, replace(state, position=position))
        assert torch.equal(out, step(q, k, v, state)[0]) and after.seen == 3


class Counter(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_what_watches_sees_the_step(known, close):
    q, k, v, state = known
    wanted, _ = step(q, k, v, state)
    with Counter() as mode:
        step(q, k, v, state)
    assert mode.seen > 5
    many = torch.stack([q, 2 * q])
    out = torch.vmap(lambda x: step(x, k, v, state)[0])(many)
    close(out[0], wanted, 1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert step(q, k, v, state)[0].dtype == torch.bfloat16
    _, tangent = torch.func.jvp(lambda x: step(q, k, x, state)[0], (v,), (torch.ones_like(v),))
    assert tangent.abs().sum() > 0
    subclass = v.as_subclass(type("Marked", (torch.Tensor,), {}))
    assert type(step(q, k, subclass, state)[0]) is not torch.Tensor


MISTAKES = {
    "full state": (lambda q, k, v, s: (q, k, v, replace(s, position=torch.tensor(MAX_LEN))), {}, "has seen 50 tokens"),
    "other max_len": (lambda q, k, v, s: (q, k, v, s), {"max_len": 60}, "made with max_len=50"),
    "no max_len": (lambda q, k, v, s: (q, k, v, s), {"max_len": None}, "given without max_len"),
    "eps": (lambda q, k, v, s: (q, k, v, s), {"eps": 0.0}, "eps=0.0"),
    "state of another max_len": (lambda q, k, v, s: (q, k, v, replace(s, max_len=60)), {}, "made with max_len=60"),
    "no state": (lambda q, k, v, s: (q, k, v, (s.kv, s.z)), {}, "state is a tuple"),
    "dtype of q": (lambda q, k, v, s: (q.double(), k, v, s), {}, "they must be equal"),
    "dtype of v": (lambda q, k, v, s: (q, k, v.bfloat16(), s), {}, "they must be equal"),
    "integers": (lambda q, k, v, s: (q, k, v.int(), s), {}, "v is torch.int32"),
    "device of k": (lambda q, k, v, s: (q, k.to("meta"), v, s), {}, "on cpu, meta, cpu"),
    "batch": (lambda q, k, v, s: (q, k, v[:1], s), {}, "batch sizes 2, 2, 1"),
    "channels": (lambda q, k, v, s: (q, k[..., :8].contiguous(), v, s), {}, "q has 16 channels and k has 8"),
    "two values": (lambda q, k, v, s: (q, k, torch.cat([v, v], 2), s), {}, "v has 4 of 2"),
    "rank": (lambda q, k, v, s: (q[0], k, v, s), {}, "q has 3 dimensions"),
    "shape of kv": (lambda q, k, v, s: (q, k, v, replace(s, kv=s.kv[:1])), {}, "state holds kv"),
    "shape of z": (lambda q, k, v, s: (q, k, v, replace(s, z=s.z[:, :, :8].contiguous())), {}, "state holds kv"),
    "dtype of z": (lambda q, k, v, s: (q, k, v, replace(s, z=s.z.double())), {}, "state is torch.float64"),
    "device of z": (lambda q, k, v, s: (q, k, v, replace(s, z=s.z.to("meta"))), {}, "state is on meta"),
    "device of kv": (lambda q, k, v, s: (q, k, v, replace(s, kv=s.kv.to("meta"))), {}, "state is on meta"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_as_everywhere(known, name):
    arguments, settings, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message):
        step(*arguments(*known), **settings)


def test_ten_thousand_steps_stay_with_float64():
    n, d = 10_000, 32
    q, k, v = (torch.randn(1, 2, n, d) for _ in range(3))
    angle = torch.pi / 2 * torch.arange(n, dtype=torch.float64)[:, None] / n
    fq, fk = (torch.cat([x * angle.cos(), x * angle.sin()], -1) for x in (q.double().relu(), k.double().relu()))
    wide, numerator = v.double(), torch.zeros(1, 2, n, d, dtype=torch.float64)
    for f in range(2 * d):
        numerator += fq[..., f, None] * (fk[..., f, None] * wide).cumsum(2)
    wanted = numerator / (fq * fk.cumsum(2)).sum(-1, keepdim=True).clamp_min(1e-6)
    outs, state = [], None
    for one in zip(*(x.split(1, dim=2) for x in (q, k, v)), strict=True):
        out, state = step(*one, state, max_len=n)
        outs.append(out)
    assert (torch.cat(outs, dim=2).double() - wanted).abs().max() <= 1e-5 * wanted.abs().max()
