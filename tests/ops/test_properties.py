"""Properties for all input, not for examples; that it is the definition, for all input, is what the fuzz tests."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cosformer import cosformer_attention
from cosformer.ops.backends import available_backends

DOUBLE = [b for b in available_backends(torch.float64) if b != "dense"]
SINGLE = [b for b in available_backends(torch.float32) if b != "dense"]


@st.composite
def problems(draw, max_length=180):
    """(B, H, Hk, N, D, E), a seed, how sparse the input is, and max_len: often N itself, D often 1."""
    hk = draw(st.integers(1, 3))
    sizes = {
        "b": draw(st.integers(1, 3)),
        "h": hk * draw(st.integers(1, 3)),
        "hk": hk,
        "n": draw(st.integers(1, max_length)),
        "d": draw(st.sampled_from([1, 1, 2, 5, 8, 17])),
        "e": draw(st.sampled_from([1, 3, 8])),
    }
    slack = draw(st.sampled_from([0, 0, 1, 100]))
    return sizes, draw(st.integers(0, 2**20)), draw(st.sampled_from([0.0, 0.6, 0.95])), slack


def make(sizes, seed, sparsity, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    b, h, hk, n, d, e = sizes.values()
    shapes = ((b, h, n, d), (b, hk, n, d), (b, hk, n, e))
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    q, k = (torch.where(torch.rand(x.shape, generator=generator) < sparsity, -x.abs(), x) for x in (q, k))
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


@given(problems(), st.booleans(), st.sampled_from(["auto", *SINGLE]), st.sampled_from(["float32", "bfloat16"]))
def test_rows_are_averages(problem, causal, backend, dtype):
    """Weights are non-negative and sum to one: a row stays within the range of the values it may see."""
    sizes, seed, sparsity, slack = problem
    q, k, v = make(sizes, seed, sparsity, dtype=getattr(torch, dtype))
    with torch.no_grad():
        out = cosformer_attention(q, k, v, causal=causal, max_len=sizes["n"] + slack, backend=backend)
        ones = cosformer_attention(q, k, torch.ones_like(v), causal=causal, max_len=sizes["n"] + slack, backend=backend)
    assert out.isfinite().all()
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    assert ones.min() >= 0 and ones.max() <= 1 + tolerance
    assert out.abs().max() <= v.abs().max() * (1 + tolerance)


@given(problems(), st.integers(0, 100), st.sampled_from(DOUBLE))
def test_only_distances_matter(close_with_gradients, problem, shift, backend):
    """Hidden tokens put in front move every position and change nothing."""
    sizes, seed, sparsity, slack = problem
    q, k, v = make(sizes, seed, sparsity)
    max_len = sizes["n"] + 100 + slack
    mask = torch.ones(sizes["b"], sizes["n"] + shift, dtype=torch.bool)
    mask[:, :shift] = False
    moved = [torch.nn.functional.pad(x, (0, 0, shift, 0), value=1.0) for x in (q, k, v)]
    out = cosformer_attention(*moved, causal=True, max_len=max_len, key_mask=mask, backend=backend, eps=1e-2)
    expected = cosformer_attention(q, k, v, causal=True, max_len=max_len, backend=backend, eps=1e-2)
    close_with_gradients(out[:, :, shift:], expected, (q, k, v))


def test_a_very_large_max_len_is_attention_without_reweighting():
    q, k, v = make({"b": 1, "h": 2, "hk": 2, "n": 100, "d": 4, "e": 4}, 0, 0.0)
    out = cosformer_attention(q, k, v, max_len=10**9)
    w = q.relu() @ k.relu().mT
    assert torch.allclose(out, (w @ v) / w.sum(-1, keepdim=True).clamp_min(1e-6), atol=1e-9)
