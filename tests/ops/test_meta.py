"""Meta tensors: shapes and dtypes without numbers, for sizing models before memory is spent."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cosformer import CosformerAttention, LinearState, cosformer_attention
from cosformer.ops import plain
from cosformer.ops.angles import angle_tables
from cosformer.ops.backends import available_backends
from cosformer.ops.spec import AttentionSpec, Call

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


class Doubles(TorchDispatchMode):
    """Which operations made float64 tensors on another device than the CPU."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.dtype == torch.float64 and x.device.type != "cpu":
                self.found.add(str(operator))
        return result


def test_angles_need_no_float64_on_a_device_that_has_none():
    """Apple's MPS, by tensors that only claim to lie there; the angles are made in float64 all the same."""
    device = torch.device("mps", 0)
    with torch.no_grad(), FakeTensorMode(), Doubles() as doubles:
        for n in (1, 40, 700):
            for causal in (False, True):
                q, k, v = (torch.empty(1, 2, n, 8, device=device) for _ in range(3))
                assert cosformer_attention(q, k, v, causal=causal, max_len=800, backend="dense").device == device
        for table in angle_tables(3, 40, 800, torch.float32, device):
            assert table.device == device and table.dtype == torch.float32
    assert not doubles.found
    q, k, v = (torch.empty(1, 2, 700, 8, device="meta") for _ in range(3))
    with Doubles() as doubles:  # the plain form makes its tables on the CPU for every other device
        plain.forward(Call(q, k, v, *(None,) * 5, AttentionSpec.cosine(800, causal=True)))
    assert not doubles.found
