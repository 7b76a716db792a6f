"""The patterns of the Sparse Transformer against the dense definition."""

import pytest
import torch

from cosformer.attention.sparse import Sparse


def build(n, causal=False, **options):
    return Sparse(num_heads=2, head_dim=8, max_len=n, causal=causal, **options)


def pattern_of(n, causal, pattern, stride, columns):
    """The union as Child et al. write it, entry by entry."""
    allowed = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        for j in range(n):
            if pattern == "fixed":
                near, far = i // stride == j // stride, j % stride in range(stride - columns, stride)
            else:
                near, far = abs(i - j) < stride, (i - j) % stride == 0
            allowed[i, j] = (near or far) and (j <= i or not causal)
    return allowed


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"pattern": "fixed", "stride": 16, "columns": 4},
        {"pattern": "fixed", "stride": 5, "columns": 5},
        {"pattern": "fixed", "stride": 128, "columns": 32},
        {"pattern": "strided", "stride": 16},
        {"pattern": "strided", "stride": 1},
        {"pattern": "strided", "stride": 128},
    ],
    ids=str,
)
@pytest.mark.parametrize("n", [3, 64, 77])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_dense_definition(causal, n, options, masked, masked_softmax_attention, assert_same_attention):
    attn = build(n, causal, **options)
    allowed = pattern_of(n, causal, options["pattern"], options["stride"], options.get("columns", 1))
    key_mask = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) > 0.3 if masked else None
    if key_mask is not None:
        key_mask[:, n // 2] = True
        key_mask[1, : n // 2] = False
        allowed = allowed & key_mask[:, None, None]
    torch.manual_seed(0)
    assert_same_attention(
        lambda q, k, v: attn(q, k, v, key_mask),
        lambda q, k, v: masked_softmax_attention(q, k, v, allowed),
        *(torch.randn(2, 2, n, 8, dtype=torch.float64) for _ in range(3)),
        atol=1e-12,
    )


def test_the_stride_balances_both_parts_of_long_sequences():
    attn = build(512)
    assert (attn.pattern, attn.stride, attn.columns) == ("fixed", 128, 32)
    assert build(8192).stride == 512  # and 32 columns of each of 16 blocks are 512 as well
    assert build(10, columns=200).stride == 200  # never narrower than its columns
    assert build(8192, pattern="strided").stride == 128
    assert build(160_000, pattern="strided").stride == 400
