"""Values that are not finite: whom they reach, and that a mask keeps them out of everything."""

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops import linear_attention
from cosformer.ops.backends import available_backends

BLOCK = 256  # the promise: rows of a causal call further than this before the value are not reached


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize(("n", "at"), [(60, 10), (700, 300), (700, 511)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whom_a_value_reaches(form, which, n, at, value, dtype):
    torch.manual_seed(0)
    named = {name: torch.randn(2, 2, n, 20).to(dtype) for name in "qkv"}
    named["q"][..., 0], named["k"][..., 0] = 1, 1
    named[which][0, 0, at, 0] = value
    out = cosformer_attention(**named, causal=True, max_len=700, backend=form)
    reached = ~out.isfinite().all(-1)
    assert not reached[1].any() and not reached[0, 1].any()
    row = reached[0, 0]
    assert row[at:].all() if which != "q" else row.nonzero().flatten().tolist() == [at]
    if form != "dense":
        assert not row[: max(at - BLOCK, 0)].any()
    out = cosformer_attention(**named, max_len=700, backend=form)
    assert not out[1].isfinite().logical_not().any()
    assert (~out[0, 0].isfinite()).any(-1).sum() == (1 if which == "q" else n)


def test_a_token_reaches_no_earlier_call_and_no_other_sequence(form):
    if form == "plain":
        pytest.skip("packs sequences into shared blocks, as the operator's reference says")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 300, 8) for _ in range(3))
    k[:, :, 150] = v[:, :, 150] = torch.nan
    cu = torch.tensor([0, 150, 151, 300])
    out = cosformer_attention(q, k, v, causal=True, max_len=300, cu_seqlens=cu, backend=form)
    assert out[:, :, :150].isfinite().all() and out[:, :, 151:].isfinite().all() and out[:, :, 150].isnan().all()


def masked_case(n, dtype, value, seed=0):
    """q, k, v, a mask, and k and v with ``value`` wherever the mask hides them."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 2, n, 6, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3))
    mask = torch.rand(2, n, generator=generator) > 0.4
    mask[:, 0] = False
    hole = ~mask[:, None, :, None]
    return q, k, v, mask, k.masked_fill(hole, value), v.masked_fill(hole, value)


def run(call, tensors, weights):
    leaves = [x.clone().requires_grad_() for x in tensors]
    results = call(*leaves)
    loss = sum((x * w).sum() for x, w in zip(results, weights, strict=True))
    return [*results, *torch.autograd.grad(loss, leaves)]


CALLS = {
    "causal": lambda mask, form: (
        lambda q, k, v: (cosformer_attention(q, k, v, causal=True, max_len=300, key_mask=mask, backend=form),)
    ),
    "all keys": lambda mask, form: (
        lambda q, k, v: (cosformer_attention(q, k, v, max_len=300, key_mask=mask, backend=form),)
    ),
    "plain features": lambda mask, form: (
        lambda q, k, v: (
            linear_attention(q, k, v, causal=True, key_mask=mask, normaliser="signed", eps=0.5, backend=form),
            linear_attention(q, k, v, key_mask=mask, normaliser="signed", eps=0.5, backend=form),
        )
    ),
    "with a state": lambda mask, form: lambda q, k, v: _with_state(q, k, v, mask, form),
    "token by token": lambda mask, form: lambda q, k, v: _token_by_token(q, k, v, mask, form),
}


def _with_state(q, k, v, mask, form):
    out, state = cosformer_attention(
        q, k, v, causal=True, max_len=300, key_mask=mask, return_state=True, backend=form
    )  # fmt: skip
    return out, state.kv, state.z


def _token_by_token(q, k, v, mask, form):
    outs, state = [], None
    for t in range(5):
        one = (x[:, :, t : t + 1] for x in (q, k, v))
        out, state = cosformer_attention(
            *one, causal=True, max_len=300, key_mask=mask[:, t : t + 1], state=state, return_state=True, backend=form
        )
        outs.append(out)
    return torch.cat(outs, dim=2), state.kv, state.z


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("n", [40, 270])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_masked_key_leaves_everything(form, name, n, value, gradients):
    q, k, v, mask, bad_k, bad_v = masked_case(n, torch.float32, value)
    call = CALLS[name](mask, form)
    if not gradients:
        assert all(torch.equal(a, b) for a, b in zip(call(q, bad_k, bad_v), call(q, k, v), strict=True))
        return
    weights = [torch.randn_like(x) for x in call(q, k, v)]
    clean, dirty = run(call, (q, k, v), weights), run(call, (q, bad_k, bad_v), weights)
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))
    hidden = ~mask[:, None, :, None]
    assert not dirty[-2].masked_select(hidden).any() and not dirty[-1].masked_select(hidden).any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("backend", available_backends(torch.float64))
def test_masked_keys_leave_second_derivatives(backend, value):
    q, k, v, mask, bad_k, bad_v = masked_case(30, torch.float64, value)

    def curvature(k, v):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = cosformer_attention(*leaves, causal=True, max_len=300, key_mask=mask, backend=backend)
        grads = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)

    for clean, dirty in zip(curvature(k, v), curvature(bad_k, bad_v), strict=True):
        torch.testing.assert_close(dirty, clean)


@pytest.mark.parametrize("eps", [1e-40, 1e-300])
@pytest.mark.parametrize("n", [20, 300])
def test_dead_rows_stay_zero_with_the_smallest_eps(form, n, eps):
    q, k, v = (torch.randn(1, 2, n, 8) for _ in range(3))
    q = -q.abs()
    for causal in (True, False):
        assert not cosformer_attention(q, k, v, causal=causal, max_len=n, eps=eps, backend=form).any()
    one, state = [x[:, :, :1] for x in (q, k, v)], None
    for _ in range(3):
        out, state = cosformer_attention(
            *one, causal=True, max_len=n, eps=eps, state=state, return_state=True, backend=form
        )
        assert not out.any()
