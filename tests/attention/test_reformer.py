"""Reformer against reformer-pytorch for the same buckets, and against a dense reference."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.reformer import SELF_SCORE, Reformer

HEADS, DIM = 2, 8


def build(max_len: int = 64, causal: bool = False, **options) -> Reformer:
    return Reformer(num_heads=HEADS, head_dim=DIM, max_len=max_len, causal=causal, **options).double()


def tokens(n: int, seed: int = 0) -> Tensor:
    return torch.randn(2, HEADS, n, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pairs(attn: Reformer, bucket: list[int]) -> Tensor:
    """Who sees whom in one round, bool [N, N], from the words of the class; bucket ``num_buckets``: masked."""
    n, chunk = len(bucket), attn.chunk
    live = [i for i in range(n) if bucket[i] < attn.num_buckets]
    order = sorted(live, key=lambda i: bucket[i])
    if attn.causal:  # cuts within each bucket
        place = {i: [j for j in order if bucket[j] == bucket[i]].index(i) // chunk for i in live}
    else:  # cuts through the sorted sequence
        place = {i: order.index(i) // chunk for i in live}
    last = max(place.values(), default=0)
    seen = torch.zeros(n, n, dtype=torch.bool)
    for i in live:
        before = last if place[i] == 0 and not attn.causal else place[i] - 1
        for j in live:
            seen[i, j] = bucket[i] == bucket[j] and place[j] in (place[i], before) and (j <= i or not attn.causal)
    return seen


def dense(attn: Reformer, q: Tensor, v: Tensor, bucket: Tensor) -> Tensor:
    """One softmax over the pairs of all rounds, each counted once or as often as it meets."""
    n = q.shape[2]
    times = torch.stack([
        torch.stack([sum(pairs(attn, r[b, h].tolist()).double() for r in bucket) for h in range(HEADS)])
        for b in range(q.shape[0])
    ])  # fmt: skip
    if not attn.allow_duplicates:
        times = times.clamp(max=1)
    scores = q @ F.normalize(q, dim=-1).mT / DIM**0.5
    scores = torch.where(torch.eye(n, dtype=torch.bool), SELF_SCORE, scores) + times.log()
    weights = torch.where((times > 0).any(-1, keepdim=True), scores, 0).softmax(-1)
    return torch.where(times > 0, weights, 0) @ v


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("allow_duplicates", [False, True])
@pytest.mark.parametrize("num_hashes", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 8, 37])
def test_it_is_the_dense_definition(n, causal, num_hashes, allow_duplicates, masked, assert_same_attention):
    attn = build(causal=causal, num_hashes=num_hashes, chunk=4, num_buckets=6, allow_duplicates=allow_duplicates)
    q, v = tokens(n), tokens(n, 1)
    key_mask = torch.ones(2, n, dtype=torch.bool)
    if masked and n > 1:
        key_mask[0, 1::3] = key_mask[1, : n // 2] = False
    bucket = attn.hash(q).masked_fill(~key_mask[:, None], attn.num_buckets)
    assert_same_attention(
        lambda q, v: attn(q, q.flip(1), v, key_mask if masked else None),  # whatever k is
        lambda q, v: dense(attn, q, v, bucket),
        q, v, atol=1e-11,
    )  # fmt: skip


@pytest.mark.parametrize("allow_duplicates", [False, True])
@pytest.mark.parametrize("num_hashes", [1, 4])
def test_it_is_reformer_pytorchs_for_the_same_buckets(num_hashes, allow_duplicates, assert_same_attention):
    attn = build(num_hashes=num_hashes, chunk=8, allow_duplicates=allow_duplicates)
    q, v = tokens(64), tokens(64, 1)
    bucket = attn.hash(q)
    compare_with_package(attn, q, v, bucket, assert_same_attention)
    sizes = F.one_hot(bucket, attn.num_buckets).sum(-2)
    assert sizes.max() > 8 > sizes.min(), "the cuts should fall within buckets"


@pytest.mark.parametrize("num_hashes", [1, 4])
def test_causal_it_is_reformer_pytorchs_when_buckets_fill_their_chunks(num_hashes, assert_same_attention):
    attn = build(causal=True, num_hashes=num_hashes, chunk=8)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(64, generator=generator) for _ in range(num_hashes * 2 * HEADS)]
    bucket = torch.stack(orders).view(num_hashes, 2, HEADS, 64) // 8
    compare_with_package(attn, tokens(64), tokens(64, 1), bucket, assert_same_attention)


def compare_with_package(attn: Reformer, q: Tensor, v: Tensor, bucket: Tensor, assert_same_attention) -> None:
    package = pytest.importorskip("reformer_pytorch.reformer_pytorch")
    module = package.LSHAttention(
        bucket_size=attn.chunk, n_hashes=attn.num_hashes, causal=attn.causal,
        allow_duplicate_attention=attn.allow_duplicates, attend_across_buckets=False,
    )  # fmt: skip
    offset = torch.arange(attn.num_hashes)[:, None, None, None] * attn.num_buckets
    theirs = (bucket + offset).permute(1, 2, 0, 3).flatten(0, 1).flatten(1)  # [B H, rounds N]
    module.hash_vectors = lambda *_, **__: theirs
    assert_same_attention(
        lambda q, v: attn.attend(q, v, bucket),
        lambda q, v: module(q.flatten(0, 1), v.flatten(0, 1))[0].view_as(v),
        q, v, atol=1e-8,
    )  # fmt: skip  # it adds 1e-9 to the counts


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [64, 32])
def test_with_one_bucket_it_is_full_shared_attention(chunk, causal, assert_same_attention):
    package = pytest.importorskip("reformer_pytorch.reformer_pytorch")
    module = package.FullQKAttention(causal=causal)
    attn = build(causal=causal, chunk=chunk, num_buckets=1)
    assert_same_attention(
        lambda q, v: attn(q, q, v),
        lambda q, v: module(q.flatten(0, 1), v.flatten(0, 1))[0].view_as(v),
        tokens(64), tokens(64, 1), atol=1e-12,
    )  # fmt: skip


def test_the_hash_is_the_nearest_of_the_rotated_axes():
    attn = build(num_hashes=3, chunk=8)
    q = tokens(40)
    rotated = torch.einsum("bhnd,rdi->rbhni", q, attn.rotations)
    nearest = rotated.abs().argmax(-1)
    negative = rotated.gather(-1, nearest[..., None]).squeeze(-1) < 0
    assert torch.equal(attn.hash(q), nearest + negative * attn.num_buckets // 2)
    assert attn.num_buckets == 8 and torch.equal(attn.hash(3 * q), attn.hash(q))


def test_more_rounds_find_more_pairs():
    q, v = tokens(64), torch.eye(64, dtype=torch.float64).expand(2, HEADS, -1, -1)
    found = [(build(num_hashes=r, chunk=8)(q, q, v) > 0).sum() for r in (1, 2, 4, 8)]
    assert found[0] < found[1] < found[2] < found[3]
