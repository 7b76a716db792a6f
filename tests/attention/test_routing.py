"""Routing attention against softmax and a dense reference, and the training of its centroids."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from cosformer.attention.routing import Routing

HEADS, DIM = 2, 8


def build(causal: bool = False, max_len: int = 64, **options) -> Routing:
    return Routing(num_heads=HEADS, head_dim=DIM, max_len=max_len, causal=causal, **options).double().eval()


def tokens(n: int, seed: int = 0) -> Tensor:
    return torch.randn(2, HEADS, n, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def norm(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("causal", [False, True])
def test_with_one_centroid_it_is_softmax_of_the_normed(causal, assert_same_attention):
    attn = build(causal, num_clusters=1)

    def softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(norm(q), norm(k), v, is_causal=causal)

    assert_same_attention(attn, softmax, *(tokens(30, i) for i in range(3)), atol=1e-12)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("n, s, causal, masked", [(40, 40, False, False), (40, 40, True, True), (25, 50, False, True)])
def test_it_is_the_dense_definition(n, s, causal, masked, window, assert_same_attention):
    attn = build(causal, num_clusters=6, window=window)
    key_mask = torch.ones(2, s, dtype=torch.bool)
    if masked:
        key_mask[0, 30:] = key_mask[1, ::3] = False

    def nearest(x: Tensor, center: Tensor, live: Tensor) -> list[int]:
        width = window or -(-int(live.sum()) // 6)
        near = (norm(x).detach() @ center).masked_fill(~live, -torch.inf)
        return near.argsort(descending=True)[: min(width, int(live.sum()))].tolist()

    def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.zeros(2, HEADS, n, DIM, dtype=torch.float64)
        for b in range(2):
            groups = [key_mask[b], ~key_mask[b]] if masked and n == s else [torch.ones(n, dtype=torch.bool)]
            for h in range(HEADS):
                found: list[list[Tensor]] = [[] for _ in range(n)]
                for center in attn.centroids[h]:
                    keys = nearest(k[b, h], center, key_mask[b])
                    for live in groups:
                        for i in nearest(q[b, h], center, live) if live.any() else []:
                            seen = [j for j in keys if j <= i or not causal]
                            if seen:
                                scores = norm(k[b, h, seen]) @ norm(q[b, h, i]) / DIM**0.5
                                found[i].append(scores.softmax(-1) @ v[b, h, seen])
                for i, results in enumerate(found):
                    if results:
                        out[b, h, i] = torch.stack(results).mean(0)
        return out

    assert_same_attention(
        lambda q, k, v: attn(q, k, v, key_mask if masked else None),
        dense, tokens(n), tokens(s, 1), tokens(s, 2), atol=1e-12,
    )  # fmt: skip


def test_later_tokens_can_change_what_a_row_sees_by_as_much_as_its_size():
    attn = build(causal=True)
    q, k, v = (tokens(64, i) for i in range(3))
    before = attn(q, k, v)
    other = [torch.cat((x[:, :, :32], tokens(64, 5 + i)[:, :, 32:]), dim=2) for i, x in enumerate((q, k, v))]
    change = (attn(*other) - before)[:, :, :32].norm(dim=-1) / before[:, :, :32].norm(dim=-1).clamp(min=1)
    assert change.max() > 0.5 and (change > 1e-9).double().mean() > 0.1


def test_training_moves_each_centroid_to_its_tokens_and_eval_does_not():
    attn = build(num_clusters=4, decay=0.9)
    q, k, v = (tokens(40, i) for i in range(3))
    key_mask = torch.ones(2, 40, dtype=torch.bool)
    key_mask[1, 15:] = False
    start = attn.centroids.clone()
    attn(q, k, v, key_mask)
    assert torch.equal(attn.centroids, start)

    attn.train()(q, k, v, key_mask)
    for h in range(HEADS):
        unit = F.normalize(torch.cat([norm(x)[:, h][key_mask] for x in (q, k)]), dim=-1)
        nearest = (unit @ start[h].mT).argmax(-1)
        for c in range(4):
            mean = F.normalize(unit[nearest == c].mean(0), dim=0)
            expected = F.normalize(0.9 * start[h, c] + 0.1 * mean, dim=0)
            torch.testing.assert_close(attn.centroids[h, c], expected)


def test_a_centroid_without_tokens_stays():
    attn = build(num_clusters=20).train()
    start = attn.centroids.clone()
    attn(*(tokens(3, i) for i in range(3)))
    moved = (attn.centroids - start).abs().amax(-1) > 1e-9
    assert moved.any() and not moved.all()


def test_processes_move_the_centroids_together(monkeypatch):
    q, k, v = (tokens(40, i) for i in range(3))
    whole, halves, sums = build().train(), [build().train() for _ in range(2)], []
    whole(q, k, v)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "all_reduce", lambda x: sums.append(x.clone()))
    for i in range(2):  # what each process would send
        build().train()(q[i : i + 1], k[i : i + 1], v[i : i + 1])
    monkeypatch.setattr(dist, "all_reduce", lambda x: x.copy_(sums[0] + sums[1]))
    for i, half in enumerate(halves):
        half(q[i : i + 1], k[i : i + 1], v[i : i + 1])
        torch.testing.assert_close(half.centroids, whole.centroids)
