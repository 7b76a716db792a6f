"""BigBird against Hugging Face's block-sparse module and the dense definition, and its random choice."""

import pytest
import torch

from cosformer.attention.bigbird import Bigbird

HEADS, DIM, BLOCK = 2, 8, 4


def build(n, **options):
    return Bigbird(num_heads=HEADS, head_dim=DIM, max_len=n, causal=False, **{"block": BLOCK, **options})


def pattern_of(attn, n):
    """bool [H, n, n] from the words of the paper and the random choice."""
    blocks = -(-n // attn.block)
    allowed = torch.zeros(HEADS, blocks, blocks, dtype=torch.bool)
    allowed[:, [0, -1], :] = allowed[:, :, [0, -1]] = True
    for i in range(blocks):
        allowed[:, i, max(i - 1, 0) : i + 2] = True
    if blocks > 2:
        choice, counts = attn.random_blocks(blocks)
        for head in range(HEADS):
            for i in range(1, blocks - 1):
                allowed[head, i, choice[head, i - 1, counts[i - 1]]] = True
    return allowed.repeat_interleave(attn.block, 1).repeat_interleave(attn.block, 2)[:, :n, :n]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_random", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 8, 9, 12, 18, 60, 63])
def test_it_is_the_dense_definition(n, num_random, masked, masked_softmax_attention, assert_same_attention):
    attn = build(63, num_random=num_random)
    allowed = pattern_of(attn, n)
    key_mask = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) > 0.4 if masked else None
    if key_mask is not None:
        key_mask[:, n // 2] = True
        allowed = allowed & key_mask[:, None, None]
    torch.manual_seed(0)
    assert_same_attention(
        lambda q, k, v: attn(q, k, v, key_mask),
        lambda q, k, v: masked_softmax_attention(q, k, v, allowed),
        *(torch.randn(2, HEADS, n, DIM, dtype=torch.float64) for _ in range(3)),
        atol=1e-12,
    )


@pytest.mark.parametrize("masked", [False, True])
def test_it_is_hugging_faces(masked, assert_same_attention, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    n = 15 * BLOCK  # more than the 5 + 2 r blocks below which HF computes densely
    attn = build(n)
    config = transformers.BigBirdConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, block_size=BLOCK, num_random_blocks=3
    )
    module = BigBirdBlockSparseAttention(config, seed=0).double()
    # HF draws anew at every call in training and takes block 0 three times in eval: give it our choice
    choice, counts = attn.random_blocks(15)
    assert counts.all()
    monkeypatch.setattr(module, "_bigbird_block_rand_mask_with_head", lambda **_: list(choice.numpy()))

    key_mask = torch.ones(2, n, dtype=torch.bool)
    if masked:
        key_mask[0, -13:] = False
        key_mask[1, 20:30] = False
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(key_mask.double(), BLOCK)

    def heads(x):
        return x.unflatten(-1, (HEADS, DIM)).transpose(1, 2)

    def ours(x):
        q, k, v = (heads(project(x)) for project in (module.query, module.key, module.value))
        return attn(q, k, v, key_mask).transpose(1, 2).flatten(2) * key_mask[..., None]

    def theirs(x):
        out = module(x, band, rows, columns, blocked, blocked)[0]
        return out * key_mask[..., None]  # rows of padding are nobody's business

    torch.manual_seed(0)
    assert_same_attention(ours, theirs, torch.randn(2, n, HEADS * DIM, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("blocks", [3, 4, 5, 6, 7, 8, 9, 10, 40])
def test_random_blocks_are_distinct_and_new(blocks):
    attn = build(40 * BLOCK, num_random=3)
    choice, counts = attn.random_blocks(blocks)
    assert choice.shape == (HEADS, blocks - 2, 3) and counts.shape == (blocks - 2, 3)
    for i in range(1, blocks - 1):
        others = set(range(blocks)) - {0, blocks - 1, i - 1, i, i + 1}
        assert counts[i - 1].sum() == min(3, len(others))
        for head in range(HEADS):
            taken = choice[head, i - 1, counts[i - 1]].tolist()
            assert len(set(taken)) == len(taken) and set(taken) <= others


def test_every_block_is_as_likely_as_another():
    blocks, row = 12, 5
    attn = Bigbird(num_heads=20_000, head_dim=1, max_len=12, causal=False, block=1, num_random=3)
    choice, _ = attn.random_blocks(blocks)
    for position in range(3):
        shares = torch.bincount(choice[:, row - 1, position], minlength=blocks) / 20_000
        legal = [1, 2, 3, 7, 8, 9, 10]
        # 1/7 each, with a standard deviation of 0.0025
        assert (shares[legal] - 1 / 7).abs().max() < 0.0125


def test_the_choice_belongs_to_the_seed_and_survives_a_change_of_dtype():
    first, same, other = build(160), build(160), build(160, seed=1)
    torch.manual_seed(1)
    choice = first.random_blocks(40)[0]
    assert torch.equal(choice, same.random_blocks(40)[0])
    assert not torch.equal(choice, other.random_blocks(40)[0])
    assert not torch.equal(choice[0], choice[1]), "all heads choose the same"
    assert torch.equal(choice, first.half().random_blocks(40)[0])
    other.load_state_dict(first.state_dict())
    assert torch.equal(choice, other.random_blocks(40)[0])
