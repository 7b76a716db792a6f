"""SMYRF against softmax, its hash and its cut against their definitions, and a dense reference."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.smyrf import Smyrf

HEADS, DIM = 2, 8


def build(**options) -> Smyrf:
    return Smyrf(num_heads=HEADS, head_dim=DIM, max_len=2048, causal=False, **options).double()


def tokens(n: int, seed: int = 0) -> Tensor:
    return torch.randn(2, HEADS, n, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def lift(attn: Smyrf, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys [N,D], [S,D] of one head on the sphere, and their hashes [N,rounds], [S,rounds]."""
    radius2 = q.norm(dim=-1).max() ** 2 + k.norm(dim=-1).max() ** 2
    zero_q, zero_k = q.new_zeros(len(q), 1), k.new_zeros(len(k), 1)
    on_q = torch.cat((q, zero_q, (radius2 - q.norm(dim=-1, keepdim=True) ** 2).sqrt()), dim=-1)
    on_k = torch.cat((k, (radius2 - k.norm(dim=-1, keepdim=True) ** 2).sqrt(), zero_k), dim=-1)
    hash_q, hash_k = (((x @ attn.direction + attn.offset) / attn.width).floor() for x in (on_q, on_k))
    return on_q, on_k, hash_q, hash_k


def dense(attn: Smyrf, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One head without masks: exp(scores), counted in each round in which query and key share a cluster."""
    n, s = len(q), len(k)
    *_, hash_q, hash_k = lift(attn, q.detach(), k.detach())
    clusters = min(-(-max(n, s) // attn.cluster_size), s)
    times = torch.zeros(n, s)
    for r in range(attn.num_hashes):
        part_q, part_k = torch.empty(n), torch.empty(s)
        part_q[hash_q[:, r].argsort(stable=True)] = (torch.arange(n) * clusters // n).float()
        part_k[hash_k[:, r].argsort(stable=True)] = (torch.arange(s) * clusters // s).float()
        times += part_q[:, None] == part_k
    weights = times * (q @ k.mT / DIM**0.5).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize("n, s", [(32, 32), (61, 61), (40, 90), (90, 40), (50, 3), (5, 1)])
@pytest.mark.parametrize("num_hashes", [1, 3])
def test_it_is_the_dense_definition(num_hashes, n, s, assert_same_attention):
    attn = build(num_hashes=num_hashes, cluster_size=8)

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = zip(*(x.flatten(0, 1) for x in (q, k, v)), strict=True)
        return torch.stack([dense(attn, *row) for row in rows]).view(2, HEADS, n, DIM)

    assert_same_attention(attn, reference, tokens(n), tokens(s, 1), tokens(s, 2), atol=1e-12)


def test_masked_keys_are_as_if_removed(assert_same_attention):
    attn = build(cluster_size=8)
    keep = torch.arange(60) % 3 != 1
    assert_same_attention(
        lambda q, k, v: attn(q, k, v, keep.expand(2, -1)),
        lambda q, k, v: attn(q, k[:, :, keep], v[:, :, keep]),
        tokens(50), tokens(60, 1), tokens(60, 2), atol=1e-12,
    )  # fmt: skip


def test_with_one_cluster_it_is_softmax(assert_same_attention):
    for num_hashes in (1, 3):
        attn = build(num_hashes=num_hashes, cluster_size=64)
        assert_same_attention(attn, F.scaled_dot_product_attention, *(tokens(50, i) for i in range(3)), atol=1e-12)


def test_near_on_the_sphere_is_a_large_product():
    attn = build()
    q, k = tokens(20)[0, 0], tokens(30, 1)[0, 0]
    on_q, on_k, hash_q, hash_k = lift(attn, q, k)
    torch.testing.assert_close(torch.cdist(on_q, on_k) ** 2, 2 * (on_q[0] @ on_q[0] - q @ k.mT))
    ours_q, ours_k = attn.hash(q[None, None], k[None, None], *(torch.ones(1, n, dtype=torch.bool) for n in (20, 30)))
    assert torch.equal(ours_q[:, 0, 0].mT, hash_q) and torch.equal(ours_k[:, 0, 0].mT, hash_k)


def test_it_keeps_more_of_the_attention_than_chance():
    attn = build(num_hashes=4, cluster_size=16)
    q, k = 2 * tokens(256), 2 * tokens(256, 1)
    seen = attn(q, k, torch.eye(256, dtype=torch.float64).expand(2, HEADS, -1, -1)) > 0
    mass = torch.where(seen, (q @ k.mT / DIM**0.5).softmax(-1), 0).sum(-1).mean()
    assert mass > 1.5 * seen.double().mean()
