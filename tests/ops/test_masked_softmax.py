"""Softmax over the allowed entries, whole and in parts."""

import torch

from cosformer.ops.masked_softmax import masked_softmax, merge_parts, partial_attention


def case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(2, 6, 9, dtype=torch.float64, generator=generator)
    allowed = torch.rand(2, 6, 9, generator=generator) > 0.5
    allowed[0, 2] = False
    return scores, allowed, torch.randn(2, 9, 4, dtype=torch.float64, generator=generator)


def test_only_the_allowed_get_weight():
    scores, allowed, _ = case()
    weights = masked_softmax(scores, allowed)
    expected = torch.where(allowed, scores.exp(), 0)
    expected = expected / expected.sum(-1, keepdim=True)
    expected[0, 2] = 0
    torch.testing.assert_close(weights, expected)


def test_parts_merge_to_the_whole_with_its_gradients():
    scores, allowed, v = case()
    scores.requires_grad_(), v.requires_grad_()
    whole = masked_softmax(scores, allowed) @ v
    cuts = [slice(0, 3), slice(3, 4), slice(4, 9)]  # in some rows a part has nothing
    parts = [partial_attention(scores[..., c].clone(), allowed[..., c], v[:, c]) for c in cuts]
    merged = merge_parts(parts)
    torch.testing.assert_close(merged, whole)
    weight = torch.linspace(-1, 1, whole.numel(), dtype=torch.float64).view_as(whole)
    expected = torch.autograd.grad((whole * weight).sum(), (scores, v))
    actual = torch.autograd.grad((merged * weight).sum(), (scores, v))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e)
    assert not merged[0, 2].any() and expected[0].isfinite().all()


def test_low_precision_scores_are_weighed_in_float32():
    scores, allowed, _ = case()
    assert masked_softmax(scores.bfloat16(), allowed).dtype == torch.float32
