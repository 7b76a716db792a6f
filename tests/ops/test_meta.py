"""Meta tensors: shapes and dtypes without numbers, for sizing models before memory is spent."""

import pytest
import torch

from cosformer import CosformerAttention, LinearState, cosformer_attention
from cosformer.ops.backends import available_backends

FORMS = ["auto", *available_backends(torch.float64, "meta")]


def same_kind(a, b):
    assert a.device.type == "meta" and (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("n", [1, 40, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_every_form(backend, n, causal):
    q, k, v = (torch.randn(2, h, n, 8, dtype=torch.float64) for h in (4, 2, 2))
    mask = torch.ones(2, n, dtype=torch.bool)
    for options in ({}, {"key_mask": mask}, {"return_state": True}):
        results = []
        for device in ("cpu", "meta"):
            leaves = [x.to(device).requires_grad_() for x in (q, k, v)]
            given = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
            out = cosformer_attention(*leaves, causal=causal, max_len=400, backend=backend, **given)
            out, state = out if "return_state" in options else (out, None)
            found = [out, *torch.autograd.grad(out.sum(), leaves)]
            results.append(found if state is None else [*found, state.kv, state.z])
        for real, shadow in zip(*results, strict=True):
            same_kind(shadow, real)


@pytest.mark.parametrize("backend", FORMS)
def test_steps_and_packed_sequences(backend):
    q = torch.randn(1, 2, 300, 8, device="meta", requires_grad=True)
    cu = torch.tensor([0, 100, 300], device="meta")
    out = cosformer_attention(q, q, q, causal=True, max_len=400, cu_seqlens=cu, backend=backend)
    out.sum().backward()
    assert out.shape == q.grad.shape == (1, 2, 300, 8) and out.is_meta
    state = None
    for t in range(3):
        one = q[:, :, t : t + 1].detach()
        out, state = cosformer_attention(
            one, one, one, causal=True, max_len=400, state=state, return_state=True, backend=backend
        )
    assert out.is_meta and state.kv.is_meta and state.seen == 3
    assert isinstance(state.to("meta"), LinearState)


def test_a_million_tokens_take_no_time_and_no_memory():
    q = torch.empty(1, 8, 1_000_000, 64, device="meta", requires_grad=True)
    out = cosformer_attention(q, q, q, causal=True)
    out.sum().backward()
    assert out.shape == q.grad.shape == q.shape


@pytest.mark.parametrize("batch_first", [False, True])
def test_module(batch_first):
    module = CosformerAttention(16, 2, max_len=64, causal=True, batch_first=batch_first, device="meta")
    x = torch.randn(5, 5, 16, device="meta")
    padding = torch.zeros(5, 5, dtype=torch.bool, device="meta")
    causal = torch.ones(5, 5, dtype=torch.bool, device="meta").triu(1)
    for options in ({}, {"key_padding_mask": padding}, {"key_padding_mask": padding.float()}, {"attn_mask": causal}):
        out, weights = module(x, x, x, need_weights=True, **options)
        assert out.shape == x.shape and weights.shape == (5, 5, 5) and out.is_meta and weights.is_meta
    out.sum().backward()
    assert module.q_proj.weight.grad.is_meta
