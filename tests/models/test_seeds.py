"""Layers of one model draw their own random features, the same ones every time the model is built."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cosformer.attention import ATTENTIONS, attention_class
from cosformer.models.transformer import CosformerModel

SEEDED = [name for name in ATTENTIONS if "seed" in inspect.signature(attention_class(name)).parameters]


def build(config: Callable, name: str, **changes: object) -> CosformerModel:
    """Two layers for 130 tokens, enough for more than one bucket of tokens; from both sides where there is such a form."""
    causal = name.startswith("rfa_gate")
    return CosformerModel(config(attention=name, is_decoder=causal, max_position_embeddings=130, **changes)).eval()


def drawn(model: CosformerModel) -> list[list[torch.Tensor]]:
    """The buffers of each layer's attention, counters apart."""
    return [[b.float() for b in layer.attention.buffers() if b.numel() > 1] for layer in model.layers]  # pyright: ignore


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_there_are_attentions_that_draw() -> None:
    assert {"performer", "rfa_gaussian", "reformer", "bigbird", "spe"} <= set(SEEDED)


@pytest.mark.parametrize("name", SEEDED)
def test_layers_draw_apart_and_again_the_same(name: str, config: Callable, ids: Callable, tmp_path: Path) -> None:
    model = build(config, name)
    first, second = drawn(model)
    assert first and not equal(first, second)
    torch.manual_seed(99)  # the features do not come from torch's own generator
    assert all(equal(a, b) for a, b in zip(drawn(model), drawn(build(config, name)), strict=True))
    model.save_pretrained(tmp_path)
    again = CosformerModel.from_pretrained(tmp_path)
    assert all(equal(a, b) for a, b in zip(drawn(model), drawn(again), strict=True))
    assert torch.equal(again(ids(2, 12))[0], model(ids(2, 12))[0])
    assert model.config.attention_options is None, "what the user did not give is not written down"


@pytest.mark.parametrize("name", ["performer", "reformer"])
def test_a_seed_that_is_given_is_taken(name: str, config: Callable) -> None:
    first, second = drawn(build(config, name, attention_options={"seed": 5}))
    assert first and equal(first, second)
    single = build(config, name, attention_options=[{"seed": 7}, {"seed": 5}])
    assert equal(drawn(single)[1], first) and not equal(drawn(single)[0], first)
