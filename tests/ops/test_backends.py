"""Every form of the operator against the definition: outputs and gradients, 1e-12 in float64."""

import pytest
import torch

from cosformer import cosformer_attention
from cosformer.ops.backends import available_backends

BACKENDS = ["auto", *available_backends()]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# B, H, Hk, N, S, D, E
SELF = [
    (2, 4, 4, 1, 1, 8, 8),
    (2, 4, 2, 37, 37, 5, 7),
    (1, 2, 2, 128, 128, 60, 60),
    (1, 6, 2, 300, 300, 16, 16),
    (3, 1, 1, 257, 257, 1, 3),
    (1, 1, 1, 390, 390, 128, 40),
    (1, 2, 1, 270, 270, 256, 9),
]
CROSS = [(2, 4, 4, 37, 150, 8, 8), (2, 4, 2, 300, 20, 5, 7), (1, 2, 2, 1, 300, 4, 4), (1, 2, 2, 300, 1, 4, 4)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SELF)
def test_self_attention(definition, tensors, close_with_gradients, sizes, causal, backend, device):
    q, k, v = tensors(*sizes, device=device)
    out = cosformer_attention(q, k, v, causal=causal, max_len=512, backend=backend)
    close_with_gradients(out, definition(q, k, v, causal=causal, max_len=512), (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("max_len", [None, 700])
@pytest.mark.parametrize("q_offset", [0, 11])
@pytest.mark.parametrize("sizes", CROSS)
def test_cross_attention(definition, tensors, close_with_gradients, sizes, q_offset, max_len, backend):
    q, k, v = tensors(*sizes)
    out = cosformer_attention(q, k, v, q_offset=q_offset, max_len=max_len, backend=backend)
    close_with_gradients(out, definition(q, k, v, q_offset=q_offset, max_len=max_len), (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", CROSS)
def test_proportional_alignment(definition, tensors, close_with_gradients, sizes, backend):
    q, k, v = tensors(*sizes)
    out = cosformer_attention(q, k, v, align="proportional", backend=backend)
    close_with_gradients(out, definition(q, k, v, align="proportional"), (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [1, 50, 129])
def test_causal_queries_may_be_the_last_positions(definition, tensors, close_with_gradients, n, backend):
    q, k, v = tensors(2, 4, 2, n, 300, 6, 5)
    out = cosformer_attention(q, k, v, causal=True, q_offset=300 - n, max_len=300, backend=backend)
    close_with_gradients(out, definition(q, k, v, causal=True, q_offset=300 - n, max_len=300), (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_key_mask(definition, tensors, close_with_gradients, causal, batch, backend):
    q, k, v = tensors(batch, 4, 2, 270, 270, 6, 5)
    mask = torch.rand(batch, 270) > 0.4
    mask[0, :140] = False
    out = cosformer_attention(q, k, v, causal=causal, max_len=300, key_mask=mask, backend=backend)
    close_with_gradients(out, definition(q, k, v, causal=causal, max_len=300, key_mask=mask), (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_masked_keys_without_angles(check_masked_features, causal, relu, with_state, backend, dtype):
    check_masked_features(backend, causal=causal, relu=relu, with_state=with_state, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_padding_on_either_side_changes_nothing_for_real_tokens(tensors, close, causal, backend):
    q, k, v = tensors(1, 2, 2, 200, 200, 6, 6, grad=False)
    alone = cosformer_attention(q, k, v, causal=causal, max_len=400, backend=backend)
    for left, right in ((70, 0), (0, 70)):
        padded = [torch.nn.functional.pad(x, (0, 0, left, right), value=3.0) for x in (q, k, v)]
        mask = torch.ones(1, 270, dtype=torch.bool)
        mask[:, :left] = False
        mask[:, 200 + left :] = False
        out = cosformer_attention(*padded, causal=causal, max_len=400, key_mask=mask, backend=backend)
        close(out[:, :, left : left + 200], alone, 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[5, 0, 200, 1, 130], [0], [7], [128, 128]])
def test_packed_sequences_equal_separate_calls(definition, tensors, close_with_gradients, lengths, causal, backend):
    total = sum(lengths)
    q, k, v = tensors(1, 4, 2, total, total, 6, 5)
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)])
    out = cosformer_attention(q, k, v, causal=causal, max_len=256, cu_seqlens=cu, backend=backend)
    pieces = zip(*(x.split(lengths, dim=2) for x in (q, k, v)), strict=True)
    expected = torch.cat([definition(*piece, causal=causal, max_len=256) for piece in pieces], dim=2)
    close_with_gradients(out, expected, (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_nothing_leaks_between_packed_sequences(tensors, causal, backend):
    q, k, v = tensors(1, 2, 2, 300, 300, 4, 4)
    cu = torch.tensor([0, 140, 300])
    out = cosformer_attention(q, k, v, causal=causal, max_len=256, cu_seqlens=cu, backend=backend)
    grads = torch.autograd.grad(out[:, :, 140:].sum(), (q, k, v))
    assert all(not g[:, :, :140].any() and g[:, :, 140:].any() for g in grads)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_output_depends_on_later_input(tensors, backend):
    q, k, v = tensors(1, 1, 1, 300, 300, 3, 2)
    out = cosformer_attention(q, k, v, causal=True, max_len=300, backend=backend)
    for t in (0, 127, 128, 298):
        grads = torch.autograd.grad(out[:, :, t].sum(), (q, k, v), retain_graph=True)
        assert all(not g[:, :, t + 1 :].any() for g in grads)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_layouts(definition, close, causal, dtype, backend):
    """Transposed, expanded, sliced, and unaligned tensors are read as they are."""
    base = torch.randn(2, 300, 4, 18, dtype=dtype)
    q = base[..., :6].transpose(1, 2)
    k = base[..., 1:7].transpose(1, 2)[:, :2]
    v = torch.randn(1, 1, 300, 5, dtype=dtype).expand(2, 2, 300, 5)
    out = cosformer_attention(q, k, v, causal=causal, max_len=300, backend=backend)
    close(out, definition(q, k, v, causal=causal, max_len=300), 1e-12)
    stepped = [x[:, :, ::2] for x in (q, k, v)]
    out = cosformer_attention(*stepped, causal=causal, max_len=300, backend=backend)
    close(out, definition(*stepped, causal=causal, max_len=300), 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_far_keys_keep_their_digits_in_float32(backend):
    """One live key at 0, the query at the other end: what a state rotated from chunk to chunk loses."""
    if backend == "dense":
        pytest.skip("the dense form of 65,536 tokens takes a matrix of 17 GB")
    n = 65_536
    q, k, v = (torch.zeros(1, 1, n, 4) for _ in range(3))
    q[:, :, -200:] = torch.rand(1, 1, 200, 4) + 0.1
    k[:, :, :50] = torch.rand(1, 1, 50, 4) + 0.1
    v[:, :, :50] = torch.randn(1, 1, 50, 4)
    expected = None
    for dtype in (torch.float64, torch.float32):
        form = "plain" if backend == "native" and dtype == torch.float64 else backend
        out = cosformer_attention(*(x.to(dtype) for x in (q, k, v)), causal=True, max_len=n, eps=1e-30, backend=form)
        if expected is None:
            expected = out[:, :, -200:]
        else:
            error = ((out[:, :, -200:].double() - expected).abs() / expected.abs().clamp_min(1e-2)).max()
            assert error <= 1e-5
    # and float64 is the definition: the last query against the few live keys
    i, j = torch.tensor(float(n)), torch.arange(1, 51)
    w = (q[0, 0, -1].double() @ k[0, 0, :50].double().T) * torch.cos(torch.pi / 2 * (i - j).double() / n)
    assert torch.allclose(expected[0, 0, -1], (w @ v[0, 0, :50].double()) / w.sum(), rtol=1e-10)
