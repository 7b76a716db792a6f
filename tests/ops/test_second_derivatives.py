"""Derivatives of derivatives, again and again, in every form: nothing of one computation may outlive it."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from cosformer import LinearState, cosformer_attention
from cosformer.ops.backends import available_backends
from cosformer.ops.factored import factored_attention
from cosformer.ops.spec import AttentionSpec, Call

FORMS = ["auto", *available_backends(torch.float64)]


def positive(*shape):
    """Away from ReLU's corner, where there is no second derivative."""
    return (torch.rand(*shape, dtype=torch.float64) + 0.1).requires_grad_()


@pytest.mark.parametrize("n", [20, 128, 300])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["auto", *available_backends()])
def test_the_second_computation_is_the_first(backend, causal, n):
    found = []
    q, k, v = (torch.randn(1, 2, n, 8).requires_grad_() for _ in range(3))
    for _ in range(2):
        out = cosformer_attention(q, k, v, causal=causal, max_len=n, backend=backend)
        grads = torch.autograd.grad(out.sum(), (q, k, v), create_graph=True)
        found.append(torch.autograd.grad(sum(x.square().sum() for x in grads), (q, k, v)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", FORMS)
def test_hessian_vector_products(backend, causal):
    q, k, v, tangent = (torch.rand(1, 2, 12, 3, dtype=torch.float64) + 0.1 for _ in range(4))

    def f(q):
        return cosformer_attention(q, k, v, causal=causal, max_len=20, backend=backend).square().sum()

    _, product = torch.autograd.functional.hvp(f, q, tangent)
    h = 1e-5
    around = [torch.autograd.functional.vjp(f, q + s * h * tangent)[1] for s in (1, -1)]
    torch.testing.assert_close(product, (around[0] - around[1]) / (2 * h), rtol=1e-5, atol=1e-6)
    nested = torch.func.grad(lambda q: (torch.func.grad(f)(q) * tangent).sum())(q)
    torch.testing.assert_close(nested, product)


def one_token(q, k, v):
    state = LinearState(k.new_ones(1, 1, 4, 2), k.new_ones(1, 1, 4), torch.tensor(3), 9)
    out, state = cosformer_attention(
        q[:, :, :1], k[:, :, :1], v[:, :, :1], causal=True, max_len=9, state=state, return_state=True
    )
    return out, state.kv, state.z


SPEC = AttentionSpec.cosine(9, causal=False)
CALLS = {
    **{
        f"{form} {'causal' if causal else 'all keys'}": lambda q, k, v, form=form, causal=causal: cosformer_attention(
            q, k, v, causal=causal, max_len=9, backend=form
        )
        for form in FORMS
        for causal in (False, True)
    },
    "one token": one_token,
    "factored": lambda q, k, v: factored_attention(Call(q, k, v, *(None,) * 5, SPEC)),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_form_has_right_first_and_second_derivatives(name):
    q, k, v = positive(1, 2, 6, 2), positive(1, 1, 6, 2), positive(1, 1, 6, 2)
    assert torch.autograd.gradcheck(CALLS[name], (q, k, v))
    assert torch.autograd.gradgradcheck(CALLS[name], (q, k, v))


@pytest.mark.parametrize("backend", available_backends(torch.float64))
def test_second_derivatives_with_state_mask_and_packing(backend):
    q, k, v = (positive(1, 1, 5, 2) for _ in range(3))
    mask = torch.tensor([[True, False, True, True, True]])

    def through_state(q, k, v):
        pieces = [[x[:, :, :2], x[:, :, 2:]] for x in (q, k, v)]
        a, state = cosformer_attention(
            *(x[0] for x in pieces), causal=True, max_len=9, return_state=True, backend=backend, key_mask=mask[:, :2]
        )
        b, state = cosformer_attention(
            *(x[1] for x in pieces), causal=True, max_len=9, state=state, return_state=True, backend=backend
        )
        return a, b, state.kv

    assert torch.autograd.gradgradcheck(through_state, (q, k, v))
    cu = torch.tensor([0, 2, 5])

    def packed(q, k, v):
        return cosformer_attention(q, k, v, causal=True, max_len=9, cu_seqlens=cu, backend=backend)

    assert torch.autograd.gradgradcheck(packed, (q, k, v))


@pytest.mark.parametrize("n", [20, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_no_call_leaves_anything_to_the_next(causal, n):
    """Fake tensors, inference tensors, meta tensors and those of a transform stay where they were made."""
    q, k, v = (torch.randn(1, 2, n, 8, dtype=torch.float64) for _ in range(3))

    def call(*tensors):
        return cosformer_attention(*tensors, causal=causal, max_len=n + 7)

    with FakeTensorMode() as mode:
        call(*(mode.from_tensor(x) for x in (q, k, v)))
    with torch.inference_mode():
        call(q, k, v)
    call(*(x.to("meta") for x in (q, k, v)))
    torch.func.vmap(torch.func.grad(lambda *x: call(*x).sum()))(*(torch.stack([x, x]) for x in (q, k, v)))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = call(*leaves)
    grads = torch.autograd.grad(out.sum(), leaves)
    assert type(out) is torch.Tensor and out.device.type == "cpu" and not out.is_inference()
    assert all(x.isfinite().all() for x in (out, *grads))
