"""The Triton kernels in the interpreter against the definition: outputs, gradients, states, masks, packing."""

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops import linear_attention
from cosformer.ops.dense import hide
from cosformer.ops.factored import attend_one
from cosformer.ops.spec import AttentionSpec, Call

pytestmark = pytest.mark.usefixtures("small")

HALF = [torch.float16, torch.bfloat16]
NAMES = ("out", "dq", "dk", "dv")
# name -> ((B, H, Hk, N, S, D, E), arguments)
CASES = {
    "causal": ((1, 2, 1, 150, 150, 24, 16), {"causal": True}),
    "full": ((2, 2, 1, 70, 70, 16, 40), {}),
    "cross": ((1, 2, 2, 40, 150, 17, 5), {"q_offset": 3}),
    "causal masked": ((2, 2, 1, 100, 100, 8, 8), {"causal": True, "key_mask": True}),
    "full masked": ((2, 1, 1, 80, 80, 8, 8), {"key_mask": True}),
    "last queries": ((1, 2, 1, 70, 170, 8, 9), {"causal": True, "q_offset": 100}),
    "packed": ((1, 2, 1, 150, 150, 8, 8), {"causal": True, "cu_seqlens": (0, 5, 5, 106, 107, 150)}),
    "packed full": ((1, 2, 1, 150, 150, 8, 8), {"cu_seqlens": (0, 5, 5, 106, 107, 150)}),
    "proportional": ((1, 1, 1, 40, 70, 8, 8), {"align": "proportional"}),
    "wide": ((1, 1, 1, 70, 70, 100, 72), {"causal": True}),
}


def prepare(tensors, name, dtype, in_nan):
    sizes, options = CASES[name]
    q, k, v = (in_nan(x) for x in tensors(*sizes, dtype=torch.float32, grad=False))
    options = {"max_len": 200, **options} if options.get("align") is None else options
    if options.get("key_mask"):
        mask = torch.rand(sizes[0], sizes[4]) > 0.4
        if dtype == torch.float32:  # a row without keys is NaN in plain float16
            mask[0, :40] = False
        else:
            mask[:, 0] = True
        options = options | {"key_mask": mask}
    if "cu_seqlens" in options:
        options = options | {"cu_seqlens": torch.tensor(options["cu_seqlens"])}
    return [in_nan(x.to(dtype)) for x in (q, k, v)], options


def with_gradients(f, tensors, weight):
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = f(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight.to(out.dtype))]


def exact(definition, tensors, options, weight):
    """The definition in float64, packed sequences one by one."""

    def f(q, k, v):
        known = dict(options)
        ends = known.pop("cu_seqlens", None)
        if ends is None:
            return definition(q, k, v, **known)
        pieces = zip(*(x.split(ends.diff().tolist(), dim=2) for x in (q, k, v)), strict=True)
        return torch.cat([definition(*x, **known) for x in pieces], dim=2)

    return with_gradients(f, [x.double() for x in tensors], weight)


@pytest.mark.parametrize("name", CASES)
def test_float32(definition, tensors, in_nan, name):
    given, options = prepare(tensors, name, torch.float32, in_nan)
    weight = torch.randn(*given[0].shape[:3], given[2].shape[3])
    got = with_gradients(lambda *x: cosformer_attention(*x, backend="triton", **options), given, in_nan(weight))
    for what, a, e in zip(NAMES, got, exact(definition, given, options, weight), strict=True):
        error = (a.double() - e).abs().max() / e.abs().max().clamp_min(1)
        assert error <= 2e-6, f"{what}: {error:.1e}"


def same_arithmetic(q, k, v, options):
    """Plain PyTorch in the input's own dtype: the measure of what low precision costs."""
    n, dtype = q.shape[2], q.dtype
    groups = q.shape[1] // k.shape[1]
    i = torch.arange(n, dtype=torch.float64)
    weight = torch.cos((i[:, None] - i) * (torch.pi / 2 / options["max_len"]))
    weight = (weight.tril() if options.get("causal") else weight).to(dtype)
    keys = k.relu()
    if options.get("key_mask") is not None:
        keys = keys * options["key_mask"][:, None, :, None]
    scores = q.relu() @ keys.repeat_interleave(groups, 1).mT * weight
    return (scores @ v.repeat_interleave(groups, 1)) / scores.sum(-1, keepdim=True).clamp_min(1e-6)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", ["causal", "full", "causal masked"])
def test_half_precision_is_within_twice_the_error_of_plain_pytorch(definition, tensors, in_nan, name, dtype):
    given, options = prepare(tensors, name, dtype, in_nan)
    weight = torch.randn(*given[0].shape[:3], given[2].shape[3]).to(dtype)
    got = with_gradients(lambda *x: cosformer_attention(*x, backend="triton", **options), given, in_nan(weight))
    plain = with_gradients(lambda *x: same_arithmetic(*x, options), given, weight)
    for what, a, r, e in zip(NAMES, got, plain, exact(definition, given, options, weight), strict=True):
        error, budget = (a.double() - e).abs().max(), 2 * (r.double() - e).abs().max()
        assert a.dtype == dtype and error <= budget, f"{what}: error {error:.1e}, budget {budget:.1e}"


def test_pieces_with_a_state_equal_the_whole(definition, tensors, close):
    q, k, v = tensors(2, 2, 1, 120, 120, 8, 6, dtype=torch.float32)
    outs, state = [], None
    for a, b in ((0, 50), (50, 51), (51, 120)):
        piece = (x[:, :, a:b] for x in (q, k, v))
        out, state = cosformer_attention(
            *piece, causal=True, max_len=128, state=state, return_state=True, backend="triton"
        )
        outs.append(out)
    expected = definition(q, k, v, causal=True, max_len=128)
    close(torch.cat(outs, dim=2), expected, 1e-5)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    loss = (torch.cat(outs, dim=2) * weight).sum() + state.kv.square().sum() + state.z.sum()
    reference, whole = cosformer_attention(
        *(x.double() for x in (q, k, v)), causal=True, max_len=128, return_state=True, backend="dense"
    )
    against = (reference * weight).sum() + whole.kv.square().sum() + whole.z.sum()
    for got, want in zip(torch.autograd.grad(loss, (q, k, v)), torch.autograd.grad(against, (q, k, v)), strict=True):
        close(got, want, 1e-5)


def test_cached_cross_attention(definition, tensors, close):
    q, k, v = tensors(1, 2, 1, 3, 90, 8, 6, dtype=torch.float32, grad=False)
    _, state = cosformer_attention(q[:, :, :0], k, v, max_len=100, return_state=True, backend="triton")
    out = cosformer_attention(q, k[:, :, :0], v[:, :, :0], max_len=100, state=state, backend="triton")
    close(out, definition(q, k, v, max_len=100), 1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normaliser", ["clamp", "add", "signed", "none"])
def test_features_without_angles(tensors, normaliser, causal):
    given = [x.exp() if i < 2 else x for i, x in enumerate(tensors(1, 2, 1, 70, 70, 8, 6, dtype=torch.float32))]
    weight = torch.randn(1, 2, 70, 6)
    options = {"causal": causal, "normaliser": normaliser}
    got = with_gradients(lambda *x: linear_attention(*x, backend="triton", **options), given, weight)
    wide = [x.double() for x in given]
    expected = with_gradients(lambda *x: linear_attention(*x, backend="dense", **options), wide, weight)
    for what, a, e in zip(NAMES, got, expected, strict=True):
        assert (a - e).abs().max() <= 2e-6 * e.abs().max(), what


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_masked_keys_without_angles(check_masked_features, causal, relu, with_state):
    check_masked_features("triton", causal=causal, relu=relu, with_state=with_state, dtype=torch.float32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masked_positions_may_hold_anything(causal, dtype):
    q, k, v = (torch.randn(2, 2, 80, 8).to(dtype) for _ in range(3))
    mask = torch.rand(2, 80) > 0.3
    hidden = ~mask[:, None, :, None]
    results = []
    for fill_k, fill_v in ((0.0, 0.0), (float("nan"), float("inf"))):
        leaves = [x.requires_grad_() for x in (q.clone(), k.masked_fill(hidden, fill_k), v.masked_fill(hidden, fill_v))]
        out, state = cosformer_attention(
            *leaves, causal=causal, max_len=80, key_mask=mask, return_state=True, backend="triton"
        )
        grads = torch.autograd.grad(out.float().square().sum() + state.kv.sum() + state.z.sum(), leaves)
        results.append([out, state.kv, state.z, *grads])
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", HALF)
def test_long_sums_stay_in_range(dtype):
    """Scores, sums and scaled gradients beyond float16's largest number on the way to results within it."""
    q, k = (torch.full((1, 1, 70, 64), 40.0, dtype=dtype).requires_grad_() for _ in range(2))
    v = torch.full((1, 1, 70, 64), 30.0, dtype=dtype).requires_grad_()
    out = cosformer_attention(q, k, v, causal=True, max_len=70, backend="triton")
    torch.testing.assert_close(out, torch.full_like(out, 30.0), rtol=1e-2, atol=0)
    for grad in torch.autograd.grad(out, (q, k, v), torch.full_like(out, 1024.0)):
        assert grad.isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_step(small, in_nan, masked, dtype):
    b, h, hk, d, e = 2, 4, 2, 24, 40
    q, k, v = (in_nan(torch.randn(b, n, 1, c).to(dtype)) for n, c in ((h, d), (hk, d), (hk, e)))
    kv, z = in_nan(torch.randn(b, hk, 2 * d, e)), in_nan(torch.rand(b, hk, 2 * d) + 1)
    mask = torch.tensor([[True], [False]]) if masked else None
    p = AttentionSpec(True, True, 37, 37, 100, 100, "clamp", 1e-6)
    for state in ((kv, z), (None, None)):
        got = small.step(Call(q, k, v, *state, mask, None, None, p))
        wide = [None if x is None else x.double() for x in (q, hide(k, mask), hide(v, mask), *state)]
        for a, want in zip(got, attend_one(Call(*wide, None, None, None, p)), strict=True):
            limit = 1e-6 if a.dtype == torch.float32 else 8e-3
            assert (a.double() - want).abs().max() <= limit * want.abs().max().clamp_min(1)
        assert got[0].dtype == dtype


def test_transposed_heads_and_strided_positions(definition, close):
    base = torch.randn(2, 160, 2, 24)
    q, k, v = (x.transpose(1, 2)[:, :, ::2] for x in base.split(8, dim=-1))
    assert q.stride(1) < q.stride(2)
    out = cosformer_attention(q, k, v, causal=True, max_len=80, backend="triton")
    close(out, definition(q, k, v, causal=True, max_len=80), 1e-5)
    # channels that do not lie side by side are copied first
    odd = base[..., ::3].transpose(1, 2)
    out = cosformer_attention(odd, odd, odd, causal=True, max_len=160, backend="triton")
    close(out, definition(odd, odd, odd, causal=True, max_len=160), 1e-5)


def test_a_model_takes_two_training_steps():
    pytest.importorskip("transformers")
    from models.two_steps import two_steps

    losses, moved = two_steps("triton", 70)
    expected, against = two_steps("dense", 70)
    assert losses[0] > losses[1] > losses[2]
    assert losses == pytest.approx(expected, rel=1e-5)
    assert (moved - against).abs().max() < 1e-4 * against.abs().max()


def test_registered_operators_pass_torchs_own_checks():
    q, k, v = (torch.randn(1, 2, 70, 4) for _ in range(3))
    settings = (None, True, True, 0, 0, 80, 80, "clamp", 1e-6, "triton")
    none, operators = (None,) * 5, torch.ops.cosformer
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(operators.linear_forward.default, (q, k, v, *none, *settings), test_utils=tests)
    results = operators.linear_forward(q, k, v, *none, *settings)
    arguments = (q, k, v, *none, results[0], *results[2:], *results, *settings)
    torch.library.opcheck(operators.linear_backward.default, arguments, test_utils=tests)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # numpy's, in the interpreter
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_float16_gradients_overflow_to_infinity(tensors, causal, decays):
    """As conversions and torch's own attention do, so that a GradScaler sees it."""
    q, k, v = tensors(1, 1, 1, 70, 70, 4, 4, dtype=torch.float32, grad=False)
    given = [(x * s).half() for x, s in ((q, 1e-4), (k, 1e-7), (v, 100.0))]
    options = {"causal": causal, "max_len": 70, "decay": torch.full((1, 4), 0.01) if decays else None}
    weight = torch.full((1, 1, 70, 4), 1000.0)

    def gradients(backend, leaves):
        return with_gradients(lambda *x: cosformer_attention(*x, backend=backend, **options), leaves, weight)[1:]

    found, exact = gradients("triton", given), gradients("dense", [x.double() for x in given])
    for grad, e in zip(found, exact, strict=True):
        clear = (e.abs() / 65_504 - 1).abs() > 0.01
        assert torch.equal(grad[clear].isinf(), e[clear].abs() > 65_504)
    assert any(grad.isinf().any() for grad in found)
