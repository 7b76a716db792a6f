"""Multi-scale decays against the formula pair by pair, and properties beyond the common contract."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cosformer.attention import build_attention
from cosformer.attention.multiscale import Multiscale
from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.config import CosformerConfig

HEADS, DIM, MAX_LEN = 2, 16, 64


def build(causal: bool = True, **options: Any) -> Multiscale:
    sizes = {"num_heads": HEADS, "head_dim": DIM, "max_len": MAX_LEN}
    attention = build_attention("multiscale", **sizes | {"causal": causal} | options)
    assert isinstance(attention, Multiscale)
    return attention


def inputs(n: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, HEADS, n, DIM, generator=generator, dtype=dtype) for _ in range(3)]


def expected_rates(groups: int) -> Tensor:
    """``[H, groups]``: from 1 to 1/max_len, dealt out over the heads."""
    return torch.logspace(0, -math.log10(MAX_LEN), HEADS * groups, dtype=torch.float64).view(groups, HEADS).T


def definition(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, cosine: bool, scales: int = 8) -> Tensor:
    """Group by group, as N x N matrices."""
    n, size = q.shape[2], DIM // scales
    distance = torch.arange(n)[:, None] - torch.arange(n)
    rates = expected_rates(scales) if causal else expected_rates(scales // 2).repeat(1, 2)
    weights = torch.zeros(*q.shape[:2], n, n, dtype=q.dtype)
    for group in range(scales):
        channels = slice(group * size, (group + 1) * size)
        looks_left = causal or group < scales // 2
        seen = distance >= 0 if looks_left else distance <= 0
        fade = torch.exp(-rates[:, group, None, None] * distance.abs()) * seen
        weights = weights + q[..., channels].relu() @ k[..., channels].relu().mT * fade
    if cosine:
        weights = weights * torch.cos(math.pi / 2 / MAX_LEN * distance.double())
    return weights @ v / weights.sum(-1, keepdim=True).clamp_min(1e-6)


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_sum_over_groups(causal: bool, cosine: bool) -> None:
    q, k, v = inputs(MAX_LEN)
    out = build(causal, cosine=cosine).double()(q, k, v)
    torch.testing.assert_close(out, definition(q, k, v, causal=causal, cosine=cosine), rtol=1e-9, atol=1e-11)


def test_it_has_no_parameters_and_a_state_of_one_size() -> None:
    attention = build()
    assert not list(attention.parameters()) and not attention.state_dict()
    q, k, v = inputs(50, torch.float32)
    _, state = attention.extend(q, k, v)
    _, with_cosine = build(cosine=True).extend(q, k, v)
    assert state.kv.shape == (2, HEADS, DIM, DIM) and with_cosine.kv.shape == (2, HEADS, 2 * DIM, DIM)


def test_the_rates_keep_their_precision_and_survive_the_meta_device() -> None:
    wanted = expected_rates(8).repeat_interleave(2, 1)
    torch.testing.assert_close(build().to(torch.bfloat16).rates, wanted, rtol=1e-12, atol=0)
    with torch.device("meta"):
        attention = build()
    assert attention.rates.is_meta
    torch.testing.assert_close(attention.to_empty(device="cpu").rates, wanted, rtol=1e-12, atol=0)


def test_keys_shared_by_heads_take_the_rates_of_the_first_head() -> None:
    q, k, v = inputs(40)
    shared = build().double()(q, k[:, :1], v[:, :1])
    rates = build().rates[:1].expand(HEADS, DIM)
    alone = build().double()
    alone.rates = rates
    torch.testing.assert_close(shared, alone(q, k[:, :1].expand_as(k), v[:, :1].expand_as(v)))


def test_only_the_cosine_limits_the_length() -> None:
    q, k, v = inputs(MAX_LEN + 6)
    assert build().double()(q, k, v).isfinite().all()
    with pytest.raises(ValueError, match=f"max_len={MAX_LEN}"):
        build(cosine=True).double()(q, k, v)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scales": 3}, "scales=3 does not divide head_dim=16"),
        ({"scales": 1, "causal": False}, "use an even number"),
        ({"fastest": 5.0}, "fastest=5.0"),
        ({"fastest": 0.001}, "slowest=0.015625, fastest=0.001"),
        ({"slowest": -1.0}, "slowest=-1.0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**options)


def model(**fields: Any) -> CosformerForCausalLM:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"vocab_size": 20, "max_position_embeddings": 24, "is_decoder": True, "attention": "multiscale"}
    torch.manual_seed(0)
    return CosformerForCausalLM(CosformerConfig(**sizes | fields)).eval()


def test_a_model_without_learned_positions_reads_past_its_max_len() -> None:
    ids = torch.randint(0, 20, (1, 60))
    lm = model(position_embedding_type="none")
    with torch.no_grad():
        whole = lm(ids).logits
        start = lm(ids[:, :50], use_cache=True)
        rest = lm(ids[:, 50:], past_key_values=start.past_key_values).logits
    torch.testing.assert_close(rest, whole[:, 50:], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="exceeds max_len=24"):
        model(position_embedding_type="learned")(ids)
    with pytest.raises(ValueError, match="exceeds max_len=24"):
        model(position_embedding_type="none", attention_options={"cosine": True})(ids)


@pytest.mark.slow
def test_a_stream_of_ten_million_tokens() -> None:
    length, window = 100_000, 4_000  # at the slowest rate of 0.01, exp(-40) is left of what is further back
    sizes = {"num_heads": 1, "head_dim": 8, "max_len": 100, "causal": True, "scales": 4}
    attention, state = build_attention("multiscale", **sizes), None
    with torch.no_grad():
        for seed in range(100):
            generator = torch.Generator().manual_seed(seed)
            q, k, v = (torch.randn(1, 1, length, 8, generator=generator) for _ in range(3))
            out, state = attention.extend(q, k, v, state)
        end = [x[:, :, -window:].double() for x in (q, k, v)]
        wanted = attention.double()(*end)[:, :, -1]
    assert state.seen == 10_000_000
    torch.testing.assert_close(out[:, :, -1].double(), wanted, rtol=1e-5, atol=1e-5)
