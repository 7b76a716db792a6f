"""The sliding window against the dense mask and the local-attention package, and its bounded state."""

import pytest
import torch

from cosformer.attention.local import Local


def build(n, causal, window):
    return Local(num_heads=2, head_dim=8, max_len=n, causal=causal, window=window)


def inputs(n, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(2, 2, n, 8, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("window", [0, 3, 64, 130, 1000])
@pytest.mark.parametrize("n", [5, 64, 65, 200])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_softmax_with_a_band_mask(n, causal, window, masked_softmax_attention, assert_same_attention):
    attn = build(n, causal, window)
    distance = torch.arange(n)[:, None] - torch.arange(n)
    band = (distance >= 0 if causal else distance >= -window) & (distance <= window)
    key_mask = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) > 0.3
    key_mask[:, n // 2 :] = True
    if n > 64:
        key_mask[1, :-30] = False  # whole blocks without a key
    for mask in (None, key_mask):
        allowed = band if mask is None else band & mask[:, None, None]
        assert_same_attention(
            lambda q, k, v, mask=mask: attn(q, k, v, mask),
            lambda q, k, v, allowed=allowed: masked_softmax_attention(q, k, v, allowed),
            inputs(n)[0] * 3,
            *inputs(n)[1:],
            atol=1e-12,
        )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_package(causal, masked, assert_same_attention):
    package = pytest.importorskip("local_attention").LocalAttention(
        window_size=32, causal=causal, exact_windowsize=True, use_rotary_pos_emb=False
    )
    attn = build(256, causal, window=32)
    # the package gives rows without a key a uniform average, so the mask leaves none
    key_mask = torch.arange(256) % 5 != 2 if masked else None
    mask = None if key_mask is None else key_mask.expand(2, 256)
    assert_same_attention(
        lambda q, k, v: attn(q, k, v, mask), lambda q, k, v: package(q, k, v, mask=mask), *inputs(256), atol=1e-12
    )


def test_the_window_is_smaller_for_short_sequences_unless_given():
    sizes = {"num_heads": 2, "head_dim": 8, "causal": False}
    assert Local(max_len=512, **sizes).window == 64
    assert Local(max_len=513, **sizes).window == 128
    assert Local(max_len=64, window=200, **sizes).window == 200
    with pytest.raises(ValueError, match="window=-1"):
        Local(max_len=64, window=-1, **sizes)


def test_the_state_stays_as_large_as_the_window():
    attn = build(300, True, window=16)
    q, k, v = inputs(300)
    state, out = None, []
    for start in range(0, 300, 7):
        part = slice(start, start + 7)
        key_mask = (torch.arange(300) % 5 != 0)[part].expand(2, -1)
        piece, state = attn.extend(q[:, :, part], k[:, :, part], v[:, :, part], state, key_mask)
        out.append(piece)
        assert state.k.shape[2] == state.v.shape[2] == min(16, state.seen)
        for x in (state.k, state.v, state.key_mask):
            assert x.untyped_storage().nbytes() == x.nbytes, "dropped keys are still in memory"
    assert state.seen == 300
    whole = attn(q, k, v, (torch.arange(300) % 5 != 0).expand(2, -1))
    torch.testing.assert_close(torch.cat(out, dim=2), whole, atol=1e-12, rtol=0)
