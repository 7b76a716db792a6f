"""The short convolution and the output gate against their formulas."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention import build_attention
from cosformer.nn.multihead import MultiHead
from cosformer.nn.short_convolution import ConvolvedState, ShortConvolution


def convolution(width: int, causal: bool) -> ShortConvolution:
    torch.manual_seed(0)
    made = ShortConvolution(6, width, causal=causal).double()
    torch.nn.init.normal_(made.weight)
    return made


def padded(x: Tensor, made: ShortConvolution) -> Tensor:
    return F.pad(x, (0, 0, made.before, made.after))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_torchs_depthwise_convolution(width: int, causal: bool) -> None:
    made, x = convolution(width, causal), torch.randn(2, 9, 6, dtype=torch.float64)
    assert (made.before, made.after) == ((width - 1, 0) if causal else (width // 2, (width - 1) // 2))
    theirs = F.conv1d(padded(x, made).transpose(1, 2), made.weight.T[:, None], groups=6).transpose(1, 2)
    assert float((made(padded(x, made)) - theirs).detach().abs().max()) < 1e-12
    made.reset_parameters()
    assert torch.equal(made(padded(x, made)), x)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_do_not_see_each_other(causal: bool) -> None:
    made, x = convolution(4, causal), torch.randn(1, 12, 6, dtype=torch.float64)
    bounds = torch.tensor([0, 5, 5, 6, 7, 12])
    alone = torch.cat([made(padded(part, made)) for part in x.split([5, 1, 1, 5], 1)], 1)
    assert float((made(padded(x, made), bounds) - alone).detach().abs().max()) < 1e-12
    # a shard of them, from the fourth token to the ninth
    found = made(padded(x, made)[:, 3 : 9 + made.before + made.after], bounds, first=3)
    assert float((found - alone[:, 3:9]).detach().abs().max()) < 1e-12


def test_half_precision_stays_what_it_is() -> None:
    made, x = convolution(4, True).float(), torch.randn(1, 9, 6)
    assert made(padded(x.bfloat16(), made)).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="width=0; a convolution spans at least 1 token"):
        ShortConvolution(6, 0, causal=True)


def attend(made: MultiHead, x: Tensor) -> Tensor:
    """Causal softmax attention with convolution and gate as the trial of them wrote it, head by head."""
    assert made.convolution is not None and made.gate is not None
    parts = [made.query(x), made.key(x), made.value(x)]
    taps = made.convolution.weight.flip(0).split([part.shape[-1] for part in parts], -1)
    mixed = []
    for part, weight in zip(parts, taps, strict=True):
        out = part * weight[0]
        for t in range(1, len(weight)):
            out = out + F.pad(part, (0, 0, t, 0))[:, : x.shape[1]] * weight[t]
        mixed.append(out.unflatten(-1, (-1, 5)).transpose(1, 2))
    q, k, v = mixed
    scores = q @ k.repeat_interleave(2, 1).mT * 5**-0.5
    low = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    out = scores.masked_fill(~low, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
    gate = F.silu(x @ made.gate.weight.T)
    return made.output(out.transpose(1, 2).flatten(2) * gate)


def multihead(causal: bool = True) -> MultiHead:
    torch.manual_seed(0)
    mechanism = build_attention("softmax", num_heads=4, head_dim=5, max_len=32, causal=causal)
    made = MultiHead(mechanism, 12, num_key_heads=2, short_convolution=3, output_gate=True).double()
    assert made.convolution is not None
    torch.nn.init.normal_(made.convolution.weight)
    return made


def test_attention_with_both_is_the_formula() -> None:
    made, x = multihead(), torch.randn(2, 9, 12, dtype=torch.float64)
    assert float((made(x) - attend(made, x)).detach().abs().max()) < 1e-12


def test_a_state_goes_with_the_kind_of_model_that_made_it() -> None:
    made, x = multihead(), torch.randn(1, 4, 12, dtype=torch.float64)
    _, state = made(x, return_state=True)
    assert isinstance(state, ConvolvedState) and state.seen == 4 and state.rows.shape == (1, 2, 40)
    assert set(state.state_dict()) == {"rows", "state.k", "state.v", "state.seen"}
    assert state.to(torch.float32).rows.dtype == torch.float32 and not state.detach().rows.requires_grad
    again = ConvolvedState.from_state_dict(state.state_dict())
    assert torch.equal(made(x, state=again, return_state=True)[0], made(x, state=state, return_state=True)[0])
    with pytest.raises(ValueError, match="rows missing"):
        ConvolvedState.from_state_dict(state.state.state_dict())
    with pytest.raises(ValueError, match="without short_convolution, and this one has one"):
        made(x, state=state.state, return_state=True)
    made.convolution = None
    with pytest.raises(ValueError, match="with short_convolution, and this one has none"):
        made(x, state=state, return_state=True)
