"""Tiny random models for the tests of this folder."""

import pytest
import torch
import transformers

from cosformer.models.config import CosformerConfig

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}


@pytest.fixture(autouse=True)
def _quiet_and_seeded():
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)


@pytest.fixture
def config():
    """A function of changed fields that returns a tiny config."""

    def make(**changes: object) -> CosformerConfig:
        return CosformerConfig(**SIZES | changes)

    return make


@pytest.fixture
def ids():
    """A function of a shape that returns random token ids, the same ones every time."""

    def make(*shape: int) -> torch.Tensor:
        return torch.randint(3, 50, shape, generator=torch.Generator().manual_seed(1))

    return make


@pytest.fixture
def relative():
    """Largest difference over the largest value of the second."""

    def measure(a: torch.Tensor, b: torch.Tensor) -> float:
        return ((a - b).abs().max() / b.abs().max()).item()

    return measure
