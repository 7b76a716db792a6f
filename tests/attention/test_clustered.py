"""Clustered attention against softmax in its limits, a dense reference, and fast-transformers."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.clustered import Clustered

HEADS, DIM = 2, 8


def build(**options) -> Clustered:
    return Clustered(num_heads=HEADS, head_dim=DIM, max_len=2048, causal=False, **options).double()


def tokens(n: int, seed: int = 0) -> Tensor:
    return torch.randn(2, HEADS, n, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n, s, masked", [(50, 50, False), (50, 50, True), (70, 33, True)])
def test_with_all_keys_on_top_it_is_softmax(n, s, masked, masked_softmax_attention, assert_same_attention):
    attn = build(num_clusters=4, topk=s)
    key_mask = torch.rand(2, s, generator=torch.Generator().manual_seed(3)) > 0.4
    allowed = key_mask[:, None, None, :].expand(-1, HEADS, n, -1) if masked else torch.ones(n, s, dtype=torch.bool)
    assert_same_attention(
        lambda q, k, v: attn(q, k, v, key_mask if masked else None),
        lambda q, k, v: masked_softmax_attention(q, k, v, allowed),
        tokens(n, 0), tokens(s, 1), tokens(s, 2), atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("topk", [None, 3])
def test_with_a_cluster_to_each_query_it_is_softmax(topk, assert_same_attention):
    attn = build(num_clusters=12, topk=topk, bits=128)
    q = tokens(12)
    assert all(len(row.unique()) == 12 for row in attn.cluster(q, torch.ones(2, 12, dtype=torch.bool)).flatten(0, 1))
    assert_same_attention(attn, F.scaled_dot_product_attention, q, tokens(40, 1), tokens(40, 2), atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("topk", [None, 1, 6])
def test_it_is_the_dense_definition(topk, masked, assert_same_attention):
    n = 90
    attn = build(num_clusters=5, topk=topk)
    key_mask = torch.ones(2, n, dtype=torch.bool)
    if masked:
        key_mask[0, 60:] = key_mask[1, ::3] = False
    cluster = attn.cluster(tokens(n), key_mask)

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = []
        for b in range(2):
            for h in range(HEADS):
                keys, values = k[b, h, key_mask[b]], v[b, h, key_mask[b]]
                for i in range(n):
                    members = (cluster[b, h] == cluster[b, h, i]) & key_mask[b]
                    row = (keys @ q[b, h, members].mean(0) / DIM**0.5).softmax(-1)
                    if topk is not None:
                        top = row.topk(topk).indices
                        own = (keys[top] @ q[b, h, i] / DIM**0.5).softmax(-1) * row[top].sum()
                        row = row.scatter(0, top, own)
                    out.append(row @ values)
        return torch.stack(out).view(2, HEADS, n, DIM)

    assert_same_attention(
        lambda q, k, v: attn(q, k, v, key_mask if masked else None),
        dense, tokens(n), tokens(n, 1), tokens(n, 2), atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("topk", [None, 8])
def test_it_is_fast_transformers_for_the_same_clusters(topk, assert_same_attention):
    package = pytest.importorskip("fast_transformers.attention")
    masking = pytest.importorskip("fast_transformers.masking")
    n, clusters = 64, 6
    attn = build(num_clusters=clusters, topk=topk).float()
    if topk is None:
        module = package.ClusteredAttention(clusters, attention_dropout=0.0)
    else:
        module = package.ImprovedClusteredAttention(clusters, topk=topk, attention_dropout=0.0)

    def our_groups(q: Tensor, lengths):
        cluster = attn.cluster(q, torch.ones(2, n, dtype=torch.bool))
        count = F.one_hot(cluster, clusters).sum(2)
        ordered, order = cluster.int().sort(dim=-1)
        return (ordered, count.int()), order

    module._create_query_groups = our_groups
    full, lengths = masking.FullMask(n), masking.LengthMask(torch.tensor([n, n]))

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return module(q, k, v, full, lengths, lengths).transpose(1, 2)

    q, k, v = (tokens(n, seed).float() for seed in range(3))
    if topk is None:
        assert_same_attention(attn, theirs, q, k, v, atol=2e-6)
    else:  # the package lets no gradient pass the mass of the top keys; ours is in the dense reference above
        assert_same_attention(lambda v: attn(q, k, v), lambda v: theirs(q, k, v), v, atol=2e-6)


def test_bundles_of_queries_are_found():
    generator = torch.Generator().manual_seed(0)
    bundle = torch.arange(60) % 3
    directions = torch.linalg.qr(torch.randn(DIM, DIM, generator=generator))[0][:3]
    q = (directions[bundle] + 0.02 * torch.randn(60, DIM, generator=generator)).expand(1, HEADS, -1, -1).double()
    cluster = build(num_clusters=3).cluster(q, torch.ones(1, 60, dtype=torch.bool))[0, 0]
    assert sorted(cluster[:3].tolist()) == [0, 1, 2]
    assert torch.equal(cluster, cluster[:3][bundle])


def test_every_query_is_in_the_cluster_whose_majority_is_nearest():
    attn, n = build(num_clusters=7, iterations=100), 200  # enough to come to rest
    q = tokens(n)
    cluster = attn.cluster(q, torch.ones(2, n, dtype=torch.bool))[0, 0]
    code = q[0, 0] @ attn.planes > 0
    used = cluster.unique()
    share = torch.stack([code[cluster == c].double().mean(0) for c in used])
    # where the votes are equal both bits will do
    distance = ((code[:, None] & (share < 0.5)) | (~code[:, None] & (share > 0.5))).sum(-1)
    own = distance.gather(1, torch.searchsorted(used, cluster)[:, None])
    assert len(used) > 3 and (own <= distance + (share == 0.5).sum(-1)).all()
