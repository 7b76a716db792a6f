"""Half precision, autocast and dead rows: what float64 on random input does not show."""

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops.backends import available_backends

HALF = [torch.bfloat16, torch.float16]
CASES = [(b, t) for t in [*HALF, torch.float32] for b in ["auto", *available_backends(t)]]
EVERY = [(b, t) for t in [*HALF, torch.float32, torch.float64] for b in ["auto", *available_backends(t)]]


def with_gradients(f, q, k, v, weight):
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = f(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight.to(out.dtype))]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("backend", "dtype"), CASES)
def test_error_is_within_twice_that_of_the_rounded_definition(definition, tensors, causal, backend, dtype):
    q, k, v = tensors(2, 4, 2, 400, 400, 32, 32, dtype=dtype, grad=False)
    weight = torch.randn(2, 4, 400, 32).to(dtype)
    exact = with_gradients(
        lambda *x: definition(*x, causal=causal, max_len=512), q.double(), k.double(), v.double(), weight
    )

    def rounded(q, k, v):
        return cosformer_attention(q, k, v, causal=causal, max_len=512, backend="dense")

    reference = [x.to(dtype) for x in with_gradients(rounded, q.float(), k.float(), v.float(), weight)]
    got = with_gradients(
        lambda *x: cosformer_attention(*x, causal=causal, max_len=512, backend=backend), q, k, v, weight
    )
    # float32 is its own rounding: the unit there is its resolution at the largest number
    unit = torch.finfo(dtype).eps if dtype == torch.float32 else 0.0
    for name, a, r, e in zip(("out", "dq", "dk", "dv"), got, reference, exact, strict=True):
        assert a.dtype == dtype
        limit = 2 * ((r.double() - e).abs().max() + unit * e.abs().max())
        error = (a.double() - e).abs().max()
        assert error <= limit, f"{name}: error {error:.2e} exceeds {limit:.2e}"


@pytest.mark.parametrize("dtype", HALF)
def test_state_of_half_precision_input_is_float32(tensors, dtype):
    q, k, v = tensors(1, 2, 2, 10, 10, 4, 4, dtype=dtype, grad=False)
    out, state = cosformer_attention(q, k, v, causal=True, max_len=20, return_state=True)
    assert out.dtype == dtype and state.kv.dtype == state.z.dtype == torch.float32
    one = [x[:, :, :1] for x in (q, k, v)]
    out, state = cosformer_attention(*one, causal=True, max_len=20, state=state, return_state=True)
    assert out.dtype == dtype and state.kv.dtype == torch.float32


@pytest.mark.parametrize("n", [40, 400])
@pytest.mark.parametrize("causal", [False, True])
def test_autocast_takes_its_dtype_and_keeps_float32_sums(tensors, causal, n):
    q, k, v = tensors(1, 2, 2, n, n, 16, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = cosformer_attention(q, k, v, causal=causal, max_len=512)
    out.float().sum().backward()
    low = [x.detach().bfloat16() for x in (q, k, v)]
    expected = cosformer_attention(*low, causal=causal, max_len=512)
    assert out.dtype == torch.bfloat16 and torch.equal(out, expected)
    assert q.grad.dtype == torch.float32 and q.grad.isfinite().all()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # a mixture, as layers under autocast hand out
        assert cosformer_attention(low[0], k, low[2], causal=causal, max_len=512).dtype == torch.bfloat16


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("backend", "dtype"), EVERY)
def test_rows_with_nothing_to_attend_to_give_zeros(tensors, causal, backend, dtype):
    q, k, v = tensors(2, 2, 2, 300, 300, 4, 4, dtype=dtype, grad=False)
    dead_queries = [q.clone().neg_().abs_().neg_(), k, v]
    dead_keys = [q, -k.abs(), v]
    orthogonal = [torch.zeros_like(q), torch.zeros_like(k), v]
    orthogonal[0][..., 0], orthogonal[1][..., 1] = 1, 1
    for case in (dead_queries, dead_keys, orthogonal):
        leaves = [x.clone().requires_grad_() for x in case]
        out = cosformer_attention(*leaves, causal=causal, max_len=300, backend=backend)
        assert not out.any()
        for grad in torch.autograd.grad(out, leaves, torch.full_like(out, 100)):
            assert grad.isfinite().all()
    mask = torch.zeros(2, 300, dtype=torch.bool)
    mask[0, 250:] = True
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = cosformer_attention(*leaves, causal=causal, max_len=300, key_mask=mask, backend=backend)
    assert not out[1].any() and out[0].any()
    assert not causal or not out[0, :, :250].any()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out, leaves, torch.ones_like(out)))


@pytest.mark.parametrize(("backend", "dtype"), EVERY)
def test_no_keys_at_all(tensors, backend, dtype):
    q, k, v = tensors(2, 2, 2, 5, 0, 4, 4, dtype=dtype)
    out = cosformer_attention(q, k, v, max_len=9, backend=backend)
    assert out.shape == (2, 2, 5, 4) and not out.any()
    assert all(
        g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v), allow_unused=True) if g is not None
    )
    q, k, v = tensors(2, 2, 2, 0, 3, 4, 4, dtype=dtype)
    assert cosformer_attention(q, k, v, max_len=9, backend=backend).shape == (2, 2, 0, 4)


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["auto", *available_backends()])
def test_no_batch_items(tensors, causal, decays, backend):
    for n in (0, 1, 40, 300):
        leaves = tensors(0, 4, 2, n, n, 6, 5, dtype=torch.float32)
        options = {"key_mask": torch.ones(0, n, dtype=torch.bool), "decay": torch.full((2, 6), 0.1) if decays else None}
        out = cosformer_attention(*leaves, causal=causal, max_len=400, backend=backend, **options)
        assert out.shape == (0, 4, n, 5)
        grads = torch.autograd.grad(out.sum(), leaves)
        assert [x.shape for x in grads] == [x.shape for x in leaves]


@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("backend", "dtype"), EVERY)
def test_gradients_of_near_dead_rows(tensors, causal, decays, backend, dtype):
    """A tiny sum below eps: gradients of order 1/eps, finite but for float16, where they overflow as conversions do."""
    q, k, v = tensors(1, 1, 1, 300, 300, 4, 4, dtype=torch.float32, grad=False)
    given = [(x * s).to(dtype) for x, s in ((q, 1e-4), (k, 1e-7), (v, 100.0))]
    options = {"causal": causal, "max_len": 300, "decay": torch.full((1, 4), 0.01) if decays else None}

    def f(backend):
        return lambda *x: cosformer_attention(*x, backend=backend, **options)

    weight = torch.full((1, 1, 300, 4), 1000.0)
    out, *grads = with_gradients(f(backend), *given, weight)
    assert out.isfinite().all()
    if dtype != torch.float16:
        assert all(grad.isfinite().all() for grad in grads)
        return
    exact = with_gradients(f("dense"), *(x.double() for x in given), weight)[1:]
    for grad, e in zip(grads, exact, strict=True):
        clear = (e.abs() / 65_504 - 1).abs() > 0.01
        assert torch.equal(grad[clear].isinf(), e[clear].abs() > 65_504)
        assert torch.equal(grad.sign(), e.half().sign())  # of zero and of infinity too
    assert any(grad.isinf().any() for grad in grads)


@pytest.mark.parametrize("backend", available_backends(torch.float16))
def test_a_grad_scaler_sees_gradients_that_overflow(backend):
    """As with torch's own attention: no step, and a smaller scale."""
    x = torch.nn.Parameter(torch.rand(1, 1, 300, 4))
    before, scaler = x.detach().clone(), torch.amp.GradScaler("cpu", init_scale=512.0)
    optimizer = torch.optim.SGD([x], lr=1.0)
    half = (x * 1e-3).half()
    out = cosformer_attention(half.detach(), half.detach(), half, max_len=300, backend=backend)
    scaler.scale(out.float().sum() * 100).backward()  # of the output 51,200 each, of some values more than 65,504
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(x.detach(), before) and scaler.get_scale() == 256.0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", [b for b in available_backends() if b != "dense"])
def test_what_backward_keeps_is_linear(causal, backend):
    """Saved tensors: q, k, v, out, the row sums and two states; nothing of size N x N or N x D x E."""
    n, d, e = 2048, 8, 8
    q, k = (torch.randn(1, 2, n, d, requires_grad=True) for _ in range(2))
    v = torch.randn(1, 2, n, e, requires_grad=True)
    saved = {}

    def pack(x):
        saved[x.data_ptr()] = x.nbytes
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        cosformer_attention(q, k, v, causal=causal, max_len=n, backend=backend)
    assert sum(saved.values()) <= 4 * 2 * (n * (2 * d + 2 * e + 1) + 2 * 2 * d * (e + 1))
