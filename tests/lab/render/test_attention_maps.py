"""The picture of attention matrices: what is in it, and that the one in the docs has a panel for everybody."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cosformer.attention import ATTENTIONS
from cosformer.attention.base import Attention
from cosformer.lab.render.attention_maps import (
    LENGTH,
    OPTIONS,
    attention_matrix,
    draw_attention_maps,
    example_attention,
    example_input,
)

PICTURE = Path(__file__).parents[3] / "docs" / "attention" / "matrices.png"


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_matrix_gives_the_output(name: str) -> None:
    attn = example_attention(name)
    assert isinstance(attn, Attention)
    q, k = example_input()
    weights = attention_matrix(attn, q, k)
    assert weights.shape == (LENGTH, LENGTH) and weights.isfinite().all()
    v = torch.randn(1, 1, LENGTH, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(weights @ v[0, 0], attn(q, k, v)[0, 0], atol=1e-4, rtol=1e-3)


def test_the_softmax_matrix_is_softmax() -> None:
    q, k = example_input()
    expected: Tensor = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)[0, 0]
    torch.testing.assert_close(attention_matrix(example_attention("softmax"), q, k), expected)


def test_the_input_repeats_its_passage() -> None:
    q, k = example_input()
    scores = (q @ k.mT)[0, 0]
    period = LENGTH // 3
    same, other = scores.diagonal(period).mean(), scores.diagonal(period // 2).mean()
    assert same > 5 * other.abs()


def test_options_belong_to_known_attentions() -> None:
    assert set(OPTIONS) <= set(ATTENTIONS)


def test_it_writes_a_picture(tmp_path: Path) -> None:
    from matplotlib import image

    draw_attention_maps(tmp_path / "one" / "maps.png", ["cosformer", "identity"])
    pixels = image.imread(tmp_path / "one" / "maps.png")[..., :3]
    blue, red = (pixels[..., 2] > pixels[..., 0] + 0.3), (pixels[..., 0] > pixels[..., 2] + 0.3)
    half = pixels.shape[1] // 2
    assert blue[:, :half].mean() > 0.05 and red[:, :half].mean() == 0  # cosformer has no negative weight
    assert red[:, half:].mean() > 0.005


def test_the_picture_in_the_docs_is_small_and_current(tmp_path: Path) -> None:
    from matplotlib import image

    assert PICTURE.stat().st_size < 400_000
    draw_attention_maps(tmp_path / "maps.png")
    # the same panels in the same places; fonts and random numbers may differ between machines
    assert image.imread(tmp_path / "maps.png").shape == image.imread(PICTURE).shape
