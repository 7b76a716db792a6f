"""The contract of the kernels on the CPU: every combination of mask, packing, state, ReLU, angles and decay against the
definition written out pair by pair in float64; outputs, row sums, states, and the gradients of all inputs.

`triton/test_contract.py` has the same for Triton's kernels.
"""

import itertools

import pytest
import torch

from cosformer.ops import dispatch, native, plain, torch_ops
from cosformer.ops.spec import AttentionSpec, Call
from ops.comparison import BOTH_WAYS, COMBINATIONS, FORMS, NORMALISERS, NOTHING, WHAT, compare, rates, within
from ops.definition import attend_pairs

CONTRACT = pytest.mark.parametrize(("form", "what", "relu", "angles"), COMBINATIONS)
THREE = list(itertools.product((False, True), repeat=3))
EVERYTHING = {"relu": True, "angles": True, "masked": True, "packed": False, "with_state": True}
needs_native = pytest.mark.skipif(not native.available(), reason=native.describe())


class Dense:
    """The dense form as a kernel: autograd is its backward pass, and it gives neither row sums nor, of packed
    sequences, a state."""

    def forward(self, call):
        given = {name: getattr(call, name) for name in ("q", "k", "v", "kv", "z")}
        self.leaves = {name: x.detach().requires_grad_() for name, x in given.items() if x is not None}
        made = dispatch.DENSE.run(call._replace(**self.leaves), None, call.cu_seqlens is None, False)
        self.made = [x for x in made if x is not None]
        out, *state = (x.detach() for x in self.made)
        return out, None, *(state or (torch.zeros(1), torch.zeros(1)))

    def backward(self, call, g_out, g_kv, g_z, *results):
        grads = (g_out, g_kv, g_z)[: len(self.made)]
        found = torch.autograd.grad(self.made, list(self.leaves.values()), grads)
        return *found, *[None] * (5 - len(found))


@CONTRACT
def test_dense(form, what, relu, angles):
    within(
        compare(Dense(), relu=relu, angles=angles, dtype=torch.float64, **FORMS[form], **(NOTHING | WHAT[what])), 1e-12
    )


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks of 16 positions and segments of 64, one head at a time: of everything there are several."""
    monkeypatch.setattr(plain, "CHUNK", 16)
    monkeypatch.setattr(plain, "CPU_SEGMENT", 64)
    monkeypatch.setattr(plain, "CPU_ROWS", 128)


@CONTRACT
def test_plain(short_chunks, form, what, relu, angles):
    within(
        compare(plain, relu=relu, angles=angles, dtype=torch.float64, **FORMS[form], **(NOTHING | WHAT[what])), 1e-12
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("normaliser", "eps"), NORMALISERS)
def test_plain_with_other_normalisers(short_chunks, form, normaliser, eps):
    options = EVERYTHING | {"normaliser": normaliser, "eps": eps, "dtype": torch.float64}
    within(compare(plain, **options, **FORMS[form]), 1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_plain_in_low_precision(short_chunks, form):
    within(compare(plain, **EVERYTHING, dtype=torch.bfloat16, **FORMS[form]), 4e-3, of_sums=2e-6)


# the operator refuses a mask beside packed sequences, and these kernels rely on it
@needs_native
@pytest.mark.parametrize(("form", "what", "relu", "angles"), [x for x in COMBINATIONS if x[1] != "packed masked"])
def test_native(in_nan, form, what, relu, angles):
    within(compare(native, relu=relu, angles=angles, place=in_nan, **FORMS[form], **(NOTHING | WHAT[what])), 2e-6)


# B, H, Hk, N, D, E: whole vectors and panels, and widths that the kernels know when they are compiled
SINGLE = [(2, 2, 1, 100, 64, 64), (1, 1, 1, 70, 32, 32), (1, 2, 2, 200, 16, 80), (1, 3, 1, 50, 5, 7)]
KINDS = [(torch.float32, 2e-6, sizes) for sizes in SINGLE]
KINDS += [(torch.bfloat16, 4e-3, sizes) for sizes in (SINGLE[0], SINGLE[3])]
EVEN = [*(x for x in KINDS if x[2][4] % 2 == 0), *((t, x, (2, 3, 1, 50, 6, 7)) for t, x, _ in (KINDS[0], KINDS[-1]))]


@needs_native
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ["whole", "masked state"])
@pytest.mark.parametrize(("dtype", "limit", "sizes"), KINDS)
def test_native_by_widths_and_dtypes(in_nan, form, what, dtype, limit, sizes):
    options = NOTHING | WHAT[what] | FORMS[form]
    within(
        compare(native, relu=True, angles=True, dtype=dtype, sizes=sizes, place=in_nan, **options), limit, of_sums=2e-6
    )


@needs_native
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("normaliser", "eps"), NORMALISERS)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_native_with_other_normalisers(in_nan, form, normaliser, eps, dtype, limit):
    options = EVERYTHING | {"normaliser": normaliser, "eps": eps, "dtype": dtype, "place": in_nan}
    within(compare(native, **options, **FORMS[form]), limit, of_sums=2e-6)


class Registered:
    """A kernel as the operator reaches it."""

    def __init__(self, backend):
        self.backend = backend

    def forward(self, call):
        return torch_ops.run_forward(call._replace(spec=call.spec._replace(backend=self.backend)))

    def backward(self, call, *rest):
        return torch_ops.run_backward(call._replace(spec=call.spec._replace(backend=self.backend)), *rest)


@pytest.mark.parametrize("what", ["whole", "masked", "packed"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("angles", [False, True])
def test_plain_both_ways(short_chunks, what, relu, angles):
    options = NOTHING | WHAT[what] | BOTH_WAYS
    within(compare(Registered("plain"), relu=relu, angles=angles, dtype=torch.float64, **options), 1e-12)


@needs_native
@pytest.mark.parametrize("what", ["whole", "masked", "packed"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("angles", [False, True])
def test_native_both_ways(in_nan, instructions, what, relu, angles):
    options = NOTHING | WHAT[what] | BOTH_WAYS
    within(compare(Registered("native"), relu=relu, angles=angles, place=in_nan, **options), 2e-6)


@needs_native
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dtype", "limit", "sizes"), EVEN)
def test_native_both_ways_by_widths_and_dtypes(in_nan, instructions, masked, dtype, limit, sizes):
    options = NOTHING | BOTH_WAYS | {"masked": masked, "dtype": dtype, "sizes": sizes, "place": in_nan}
    within(compare(Registered("native"), relu=True, angles=True, **options), limit, of_sums=2e-6)


@needs_native
@pytest.mark.parametrize(("normaliser", "eps"), NORMALISERS)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_native_both_ways_with_other_normalisers(in_nan, normaliser, eps, dtype, limit):
    options = NOTHING | BOTH_WAYS | {"normaliser": normaliser, "eps": eps, "dtype": dtype, "masked": True}
    within(compare(Registered("native"), relu=True, angles=True, place=in_nan, **options), limit, of_sums=2e-6)


@needs_native
@pytest.mark.parametrize(("relu", "angles", "decays"), THREE)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("state", [False, True])
def test_one_step(in_nan, relu, angles, decays, masked, state):
    b, h, hk, d, e = 2, 4, 2, 21, 77
    q, k, v = (in_nan(torch.rand(b, heads, 1, width)) for heads, width in ((h, d), (hk, d), (hk, e)))
    features, length = (2 * d, 100) if angles else (d, 0)
    before = (in_nan(torch.randn(b, hk, features, e)), in_nan(torch.rand(b, hk, features) + 1)) if state else None
    mask, decay = torch.tensor([[True], [False]]) if masked else None, in_nan(rates(hk, d)) if decays else None
    spec = AttentionSpec(relu, True, 37, 37, length, length, "clamp", 1e-6)
    got = native.step(Call(q, k, v, *(before or (None, None)), mask, None, decay, spec))
    options = {"causal": True, "relu": relu, "length": length, "first": 37, "key_mask": mask, "decay": decay}
    out, _, *after = attend_pairs(q, k, v, state=before, **options)
    for a, exact in zip(got, (out, *after), strict=True):
        assert (a.double() - exact).abs().max() <= 1e-6 * exact.abs().max().clamp_min(1)


@needs_native
@pytest.mark.parametrize(("relu", "angles", "masked"), THREE)
@pytest.mark.parametrize(("causal", "decays"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize(("n", "d", "e"), [(50, 12, 10), (33, 16, 32)])
def test_the_dense_form_in_c(in_nan, relu, angles, masked, causal, decays, n, d, e):
    h, hk = 4, 2
    q, k, v = (torch.randn(2, heads, n, width) for heads, width in ((h, d), (hk, d), (hk, e)))
    q, k, v = (in_nan(x) for x in (q, k, v)) if relu else (in_nan(q.abs()), in_nan(k.abs()), in_nan(v))
    mask, decay = torch.rand(2, n) > 0.3 if masked else None, rates(hk, d).clamp_max(0.5) if decays else None
    spec = AttentionSpec(relu, causal, 0, 0, 90 * angles, 90 * angles, "clamp", 1e-6)
    out = native.dense(Call(q, k, v, None, None, mask, None, decay, spec))
    exact = attend_pairs(q, k, v, causal=causal, relu=relu, length=90 * angles, key_mask=mask, decay=decay)[0]
    assert (out.double() - exact).abs().max() <= 2e-6 * exact.abs().max().clamp_min(1)
