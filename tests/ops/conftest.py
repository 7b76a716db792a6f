"""Shared by the operator's tests: the definition again, NaN-filled memory, this machine's backends."""

import functools
import math
import os
from contextlib import contextmanager, nullcontext

import pytest
import torch
from hypothesis import HealthCheck, settings

from cosformer.ops import linear_attention
from cosformer.ops.backends import available_backends
from cosformer.ops.native.library import INSTRUCTION_SETS, loaded

settings.register_profile(
    "default", max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
settings.load_profile("default")

SINGLE = 1e-5  # the limit of a backend that has no float64

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def nan_filled_memory():
    """torch.empty hands out NaN: a buffer that is read before it is written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def chosen_instructions(name):
    """The build of the native kernels with this name; skips where the processor does not run it."""
    library = loaded()
    before = library.instructions
    if name not in library.instruction_sets:
        pytest.skip(f"this processor does not run the {name} kernels")
    library.choose(name)
    yield name
    library.choose(before)


@pytest.fixture(params=INSTRUCTION_SETS)
def instructions(request):
    """Each build of the native kernels that this processor runs, by name."""
    with chosen_instructions(request.param):
        yield request.param


@pytest.fixture(params=["dense", "plain", *(f"{b} {i}" for b in ("auto", "native") for i in INSTRUCTION_SETS)])
def form(request):
    """Each backend; the native one, and what auto takes, once for each instruction set."""
    backend, *names = request.param.split()
    if backend not in ("auto", *available_backends()):
        pytest.skip(f"no {backend} backend here")
    with chosen_instructions(*names) if names and "native" in available_backends() else nullcontext():
        yield backend


@pytest.fixture
def in_nan():
    """Copies of tensors inside larger ones of NaN: what is read beside them spoils the result."""
    kept = []

    def place(x):
        around = torch.full((x.numel() + 2048,), float("nan"), dtype=x.dtype)
        kept.append(around)
        inner = around[1024 : 1024 + x.numel()].view(x.shape)
        return inner.copy_(x)

    return place


def write_out(q, k, v, *, causal=False, max_len=None, q_offset=0, align="absolute", key_mask=None, eps=1e-6):
    """cosFormer attention as the paper defines it, 1-based positions, k and v repeated for grouped heads; float64."""
    q, k, v = q.double(), k.double(), v.double()
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    n, s = q.shape[2], k.shape[2]
    i = torch.arange(1, n + 1, dtype=torch.float64, device=q.device)[:, None] + q_offset
    j = torch.arange(1, s + 1, dtype=torch.float64, device=q.device)[None, :]
    absolute = (i - j) / (max_len or max(n + q_offset, s))
    distance = i / n - j / max(s, 1) if align == "proportional" else absolute
    scores = torch.einsum("bhnd,bhsd->bhns", q.relu(), k.relu()) * torch.cos(math.pi / 2 * distance)
    if causal:
        scores = torch.where(j <= i, scores, 0)
    if key_mask is not None:
        scores = torch.where(key_mask[:, None, None, :], scores, 0)
    return torch.einsum("bhns,bhse->bhne", scores, v) / scores.sum(-1, keepdim=True).clamp_min(eps)


@pytest.fixture
def definition():
    return write_out


def make(*sizes, dtype=torch.float64, device="cpu", grad=True, seed=0):
    """q, k, v of (B, H, Hk, N, S, D, E)."""
    b, h, hk, n, s, d, e = sizes
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, h, n, d), (b, hk, s, d), (b, hk, s, e))
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype) for shape in shapes]
    if dtype == torch.float32:  # no tiny row sums: gradients there are huge and cancel, which takes float64
        for x in tensors[:2]:
            x[..., 0] = x[..., 0].abs() + 0.5
    return [x.requires_grad_(grad) for x in tensors]


@pytest.fixture
def dtype(request):
    """float64, or float32 where the test runs a backend that has no other."""
    call = getattr(request.node, "callspec", None)
    return torch.float32 if call is not None and call.params.get("backend") == "native" else torch.float64


@pytest.fixture
def tensors(dtype):
    return functools.partial(make, dtype=dtype)


def assert_equal(actual, expected, limit):
    """Largest difference, relative to the largest expected number (at least 1), below ``limit``; NaN never passes."""
    assert actual.shape == expected.shape
    if actual.numel() == 0:
        return
    scale = expected.detach().abs().max().double().clamp_min(1)
    error = ((actual.detach().double() - expected.detach().double()).abs().max() / scale).item()
    assert error <= limit, f"error {error:.3e} exceeds {limit:.0e}"


@pytest.fixture
def close(dtype):
    def check(actual, expected, limit):
        assert_equal(actual, expected, limit if dtype == torch.float64 else max(limit, SINGLE))

    return check


@pytest.fixture
def close_with_gradients(dtype):
    def check(actual, expected, inputs, limit=1e-12):
        limit = limit if dtype == torch.float64 else max(limit, SINGLE)
        assert_equal(actual, expected, limit)
        weight = torch.randn(expected.shape, dtype=expected.dtype, device=expected.device)
        for got, want in zip(
            torch.autograd.grad(actual, inputs, weight.to(actual.dtype), retain_graph=True),
            torch.autograd.grad(expected, inputs, weight, retain_graph=True),
            strict=True,
        ):
            assert_equal(got, want, limit)

    return check


def write_out_linear(q, k, v, *, causal, relu, key_mask, past):
    """Attention by plain features over the keys of ``past`` and the new ones, as its N x S matrix in float64."""
    q, k, v = (torch.cat([a, b], dim=2).double() for a, b in zip(past, (q, k, v), strict=True))
    seen = torch.cat([torch.ones(*key_mask.shape[:1], past[1].shape[2], dtype=torch.bool), key_mask], dim=1)
    fq, fk = (q.relu(), k.relu()) if relu else (q, k)
    scores = torch.where(seen[:, None, None, :], fq @ fk.mT, 0)
    scores = scores.tril() if causal else scores
    out = torch.where(seen[:, None, None, :], scores, 0) @ v / scores.sum(-1, keepdim=True).clamp_min(1e-6)
    return out[:, :, past[1].shape[2] :]


@pytest.fixture
def check_masked_features():
    """A masked call without angles against the matrix: outputs, and gradients that are zero where a key is masked.

    Without a ReLU the features are positive (exp), and with or without it the loss has a term in the returned state:
    behind a ReLU, or without a gradient of the state, a mask that a backward pass lacks can go unseen.
    """

    def check(backend, *, causal, relu, with_state, dtype):
        limit = 1e-12 if dtype == torch.float64 else SINGLE
        past = [x.detach() for x in make(2, 2, 2, 70, 70, 6, 5, dtype=dtype, seed=1)] if with_state else None
        empty = [torch.zeros(2, 2, 0, c, dtype=dtype) for c in (6, 6, 5)]
        leaves = make(2, 2, 2, 150, 150, 6, 5, dtype=dtype)
        if not relu:  # positive features, so that no row sum is near zero
            past = past and [x.exp() if i < 2 else x for i, x in enumerate(past)]
            leaves = [(x.detach().exp() if i < 2 else x.detach()).requires_grad_() for i, x in enumerate(leaves)]
        mask = torch.rand(2, 150) > 0.4
        mask[1, :80] = False
        options = {"causal": causal, "relu": relu, "backend": backend}
        state = linear_attention(*past, **options, return_state=True)[1] if past else None
        out, after = linear_attention(*leaves, key_mask=mask, state=state, return_state=True, **options)
        expected = write_out_linear(*leaves, causal=causal, relu=relu, key_mask=mask, past=past or empty)
        assert_equal(out, expected, limit)
        kept = mask[:, None, :, None]
        keys = torch.where(kept, leaves[1].relu() if relu else leaves[1], 0).double()
        sums = keys.mT @ torch.where(kept, leaves[2], 0).double()
        weights = [torch.randn(x.shape, dtype=torch.float64) for x in (out, after.kv)]
        got = (out * weights[0]).sum() + (after.kv * weights[1]).sum() + after.z.sum()
        want = (expected * weights[0]).sum() + (sums * weights[1]).sum() + keys.sum()
        grads = torch.autograd.grad(got, leaves), torch.autograd.grad(want, leaves)
        for actual, exact in zip(*grads, strict=True):
            assert_equal(actual, exact, limit)
        assert not any(g[~kept.expand_as(g)].any() for g in grads[0][1:])

    return check
