"""Linformer against the linformer package and its formula."""

import pytest
import torch
from torch import Tensor

from cosformer.attention.linformer import Linformer

HEADS, DIM, MAX_LEN = 2, 8, 40


def build(**options) -> Linformer:
    torch.manual_seed(0)
    return Linformer(num_heads=HEADS, head_dim=DIM, max_len=MAX_LEN, causal=False, **options).double()


def tokens(n: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, HEADS, n, DIM, dtype=torch.float64)


@pytest.mark.parametrize("n", [MAX_LEN, 23])
def test_it_is_the_packages(n, assert_same_attention):
    package = pytest.importorskip("linformer")
    attn = build(rank=6)
    module = package.LinformerSelfAttention(HEADS * DIM, MAX_LEN, k=6, heads=HEADS).double()
    with torch.no_grad():
        attn.project_k.copy_(module.proj_k.mT)
        attn.project_v.copy_(module.proj_v.mT)

    def ours(x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for layer in projections)
        return module.to_out(attn(q, k, v).transpose(1, 2).flatten(2))

    projections = (module.to_q, module.to_k, module.to_v)
    x = torch.randn(2, n, HEADS * DIM, dtype=torch.float64)
    assert_same_attention(ours, module, x, atol=1e-12)

    for attention in (ours, module):
        attention(x).square().sum().backward()
    for ours_grad, theirs in ((attn.project_k.grad, module.proj_k.grad), (attn.project_v.grad, module.proj_v.grad)):
        torch.testing.assert_close(ours_grad[0], theirs.mT, atol=1e-10, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sharing, count", [("none", 2 * HEADS), ("headwise", 2), ("key-value", 1)])
def test_it_is_the_formula(sharing, count, masked, assert_same_attention):
    attn = build(rank=5, sharing=sharing)
    n, s = 17, 29
    key_mask = torch.rand(2, s) > 0.3 if masked else torch.ones(2, s, dtype=torch.bool)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keep = key_mask[:, None, :, None].double()
        e, f = attn.project_k[..., :s], attn.project_v[..., :s]
        scores = torch.einsum("bhnd,hrs,bhsd->bhnr", q, e.expand(HEADS, -1, -1), k * keep) / DIM**0.5
        return scores.softmax(-1) @ (f @ (v * keep))

    assert sum(p.numel() for p in attn.parameters()) == count * 5 * MAX_LEN
    assert_same_attention(
        lambda q, k, v: attn(q, k, v, key_mask if masked else None),
        formula,
        tokens(n),
        tokens(s),
        tokens(s),
        atol=1e-12,
    )
