"""Learned maps with a softmax window: against the definition written as matrices, and in pieces."""

import pytest
import torch

from cosformer.hf.windowed_map import WindowedMap, WindowState


def build(window: int, attention: str = "relu") -> WindowedMap:
    torch.manual_seed(0)
    options = {"redraw_interval": None} if attention == "performer" else None
    made = WindowedMap(
        attention,
        window=window,
        num_heads=6,
        num_key_heads=2,
        head_dim=8,
        features=16,
        max_len=64,
        causal=True,
        options=options,
    ).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def inputs(n: int, rows: int = 2):
    torch.manual_seed(n)
    return (torch.randn(rows, heads, n, 8, dtype=torch.float64) for heads in (6, 2, 2))


def by_definition(m: WindowedMap, q, k, v, key_mask):
    """Both kinds of weights as N x N matrices."""
    n = q.shape[2]
    fq, fk = q @ m.query + m.query_bias, k @ m.key + m.key_bias
    k, v, fk = (x.repeat_interleave(3, 1) for x in (k, v, fk))
    distance = torch.arange(n)[:, None] - torch.arange(n)
    keep = key_mask[:, None, None, :]
    near = ((distance >= 0) & (distance < m.window)) & keep
    scores = (q @ k.mT / 8**0.5).masked_fill(~near, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True).clamp_min(-1e300)).exp()
    far = (fq.relu() @ fk.relu().mT) * ((distance >= m.window) & keep)
    weights = weights + m.factor.exp() * far
    return weights @ v / weights.sum(-1, keepdim=True).clamp_min(1e-6)


@pytest.mark.parametrize("window", [1, 3, 8, 40])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_the_definition(window, padded):
    m = build(window)
    q, k, v = inputs(21)
    mask = torch.ones(2, 21, dtype=torch.bool)
    if padded:
        mask[0, :5] = False
        mask[1, -4:] = False
    out = m(q, k, v, mask if padded else None)
    expected = by_definition(m, q, k, v, mask)
    rows = mask[:, None, :, None].expand_as(out)
    assert (out - expected)[rows].abs().max() < 1e-10
    parameters = list(m.parameters())
    got, want = (torch.autograd.grad((x * rows).square().sum(), parameters) for x in (out, expected))
    assert all((a - b).abs().max() < 1e-9 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("attention", ["relu", "linear", "performer"])
@torch.no_grad()
def test_in_pieces_it_is_the_same(attention):
    m = build(5, attention)
    q, k, v = inputs(23)
    mask = torch.ones(2, 23, dtype=torch.bool)
    mask[1, :6] = False
    whole = m(q, k, v, mask)
    state, pieces, first = None, [], 0
    for length in (1, 1, 7, 2, 12):
        part = slice(first, first + length)
        out, state = m.extend(q[:, :, part], k[:, :, part], v[:, :, part], state, mask[:, part])
        state = WindowState.from_state_dict(state.state_dict())
        pieces.append(out)
        first += length
        assert state.seen == first
        assert state.k.shape[2] == 5
    assert (torch.cat(pieces, 2) - whole)[:, :, 6:].abs().max() < 1e-10


def test_what_has_no_window_is_refused():
    sizes = {"num_heads": 2, "num_key_heads": 2, "head_dim": 8, "features": 16, "max_len": 64}
    for name in ("cosformer", "rotary_linear", "rfa_gate_arccos"):
        with pytest.raises(ValueError, match=f"attention='{name}' has no window"):
            WindowedMap(name, window=4, causal=True, **sizes)
    with pytest.raises(ValueError, match="causal"):
        WindowedMap("relu", window=4, causal=False, **sizes)
