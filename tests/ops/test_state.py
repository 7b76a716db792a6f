"""The state: any split of a sequence into pieces gives the whole, in constant size, with gradients."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosformer import LinearState, cosformer_attention
from cosformer.ops.backends import available_backends

BACKENDS = ["auto", *available_backends()]


def stream(q, k, v, cuts, *, max_len, backend="auto", key_mask=None):
    outs, state = [], None
    for a, b in zip([0, *cuts], [*cuts, q.shape[2]], strict=True):
        mask = None if key_mask is None else key_mask[:, a:b]
        pieces = (x[:, :, a:b] for x in (q, k, v))
        out, state = cosformer_attention(
            *pieces, causal=True, max_len=max_len, key_mask=mask, state=state, return_state=True, backend=backend
        )
        outs.append(out)
    return torch.cat(outs, dim=2), state


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cuts", [[1], [150], [1, 2, 3, 140, 299], [64, 128, 192, 256]])
def test_pieces_equal_the_whole_with_gradients(definition, tensors, close_with_gradients, cuts, backend):
    q, k, v = tensors(2, 4, 2, 300, 300, 6, 5)
    out, state = stream(q, k, v, cuts, max_len=300, backend=backend)
    assert state.seen == 300
    close_with_gradients(out, definition(q, k, v, causal=True, max_len=300), (q, k, v))


def test_one_token_at_a_time(definition, tensors, close_with_gradients):
    q, k, v = tensors(2, 4, 2, 40, 40, 6, 5)
    out, _ = stream(q, k, v, list(range(1, 40)), max_len=64)
    close_with_gradients(out, definition(q, k, v, causal=True, max_len=64), (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
def test_left_padded_prompts_of_unequal_length(tensors, close, backend):
    q, k, v = tensors(3, 2, 2, 30, 30, 6, 6, grad=False)
    lengths = [30, 1, 17]
    mask = torch.stack([torch.arange(30) >= 30 - n for n in lengths])
    out, _ = stream(q, k, v, [20, 21, 28], max_len=40, backend=backend, key_mask=mask)
    for b, n in enumerate(lengths):
        alone = cosformer_attention(*(x[b : b + 1, :, 30 - n :] for x in (q, k, v)), causal=True, max_len=40)
        close(out[b : b + 1, :, 30 - n :], alone, 1e-12)


def test_size_is_constant_and_known(tensors):
    q, k, v = tensors(2, 4, 2, 50, 50, 6, 5, grad=False)
    _, short = stream(q, k, v, [1], max_len=1000)
    _, again = stream(q, k, v, [7, 9], max_len=1000)
    first, _ = cosformer_attention(*(x[:, :, :1] for x in (q, k, v)), causal=True, max_len=1000, return_state=True)
    assert first.shape == (2, 4, 1, 5)
    assert short.kv.shape == (2, 2, 12, 5) and short.z.shape == (2, 2, 12)
    assert short.nbytes == again.nbytes == 8 * 2 * 2 * 12 * (5 + 1)
    assert torch.allclose(short.kv, again.kv, rtol=1e-12) and short.seen == again.seen == 50


def test_running_past_max_len_raises(tensors):
    q, k, v = tensors(1, 1, 1, 10, 10, 4, 4, grad=False)
    _, state = stream(q, k, v, [5], max_len=12)
    with pytest.raises(ValueError, match=r"seen 10 tokens and 10 more exceed max_len=12"):
        cosformer_attention(q, k, v, causal=True, max_len=12, state=state, return_state=True)
    one = [x[:, :, :1] for x in (q, k, v)]
    for _ in range(2):
        _, state = cosformer_attention(*one, causal=True, max_len=12, state=state, return_state=True)
    with pytest.raises(ValueError, match=r"seen 12 tokens and 1 more"):
        cosformer_attention(*one, causal=True, max_len=12, state=state, return_state=True)


def test_detach_reorder_and_move(tensors, close):
    q, k, v = tensors(3, 2, 2, 10, 10, 4, 4)
    _, state = stream(q, k, v, [5], max_len=20)
    assert state.kv.requires_grad and not state.detach().kv.requires_grad and not state.detach().z.requires_grad
    index = torch.tensor([2, 0, 0])
    beams = state.reorder(index)
    assert beams.seen == 10
    nxt = tensors(3, 2, 2, 1, 1, 4, 4, seed=1, grad=False)
    whole, _ = cosformer_attention(*nxt, causal=True, max_len=20, state=beams, return_state=True)
    picked = [torch.cat([x.detach()[index], y], dim=2) for x, y in zip((q, k, v), nxt, strict=True)]
    close(whole, cosformer_attention(*picked, causal=True, max_len=20)[:, :, -1:], 1e-12)
    single = state.to(torch.float32)
    assert single.kv.dtype == single.z.dtype == torch.float32 and single.seen == 10
    with pytest.raises(ValueError, match="float16"):
        state.to(torch.float16)


def test_saved_and_loaded_bitwise(tensors, tmp_path):
    q, k, v = tensors(2, 2, 1, 10, 10, 4, 4, grad=False)
    _, state = stream(q, k, v, [5], max_len=20)
    save_file(state.state_dict(), tmp_path / "state.safetensors")
    loaded = LinearState.from_state_dict(load_file(tmp_path / "state.safetensors"))
    one = [x[:, :, :1] for x in (q, k, v)]
    results = [
        cosformer_attention(*one, causal=True, max_len=20, state=s, return_state=True)[0] for s in (state, loaded)
    ]
    assert torch.equal(*results) and loaded.seen == 10 and loaded.max_len == 20


def test_a_state_of_another_format_is_refused(tensors):
    q, k, v = tensors(1, 1, 1, 3, 3, 4, 4, grad=False)
    saved = stream(q, k, v, [1], max_len=20)[1].state_dict()
    with pytest.raises(ValueError, match="format 99"):
        LinearState.from_state_dict(saved | {"format": torch.tensor(99)})
    del saved["z"]
    with pytest.raises(ValueError, match="z missing"):
        LinearState.from_state_dict(saved)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cached_cross_attention(definition, tensors, close_with_gradients, backend):
    """Keys taken in once, then queries at their own positions with no keys of their own."""
    q, k, v = tensors(2, 4, 2, 7, 290, 6, 5)
    empty = [x[:, :, :0] for x in (k, v)]
    _, state = cosformer_attention(q[:, :, :0], k, v, max_len=300, return_state=True, backend=backend)
    outs = [
        cosformer_attention(q[:, :, t : t + 1], *empty, q_offset=t, max_len=300, state=state, backend=backend)
        for t in range(7)
    ]
    close_with_gradients(torch.cat(outs, dim=2), definition(q, k, v, max_len=300), (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_and_through_the_state(tensors, close, backend):
    """A loss on the state alone, and a state given as a leaf, against the dense form."""
    q, k, v = tensors(2, 4, 2, 150, 150, 4, 3)
    start = stream(*tensors(2, 4, 2, 20, 20, 4, 3, grad=False, seed=2), [9], max_len=300)[1]
    on_kv, on_z = (torch.randn(x.shape, dtype=torch.float64) for x in (start.kv, start.z))
    results = []
    for form, dtype in (("dense", torch.float64), (backend, q.dtype)):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v, start.kv, start.z)]
        given = LinearState(*leaves[3:], start.position, 300)
        out, state = cosformer_attention(
            *leaves[:3], causal=True, max_len=300, state=given, return_state=True, backend=form
        )
        loss = out.square().sum() + (state.kv * on_kv.to(dtype)).sum() + (state.z * on_z.to(dtype)).sum()
        results.append(torch.autograd.grad(loss, leaves))
    for got, want in zip(results[1], results[0], strict=True):
        close(got, want, 1e-12)
