"""Adaptive input and softmax against their plain definitions."""

import pytest
import torch
import torch.nn.functional as F

from cosformer.models.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from cosformer.models.causal_lm import CosformerForCausalLM


@pytest.fixture
def pair():
    torch.manual_seed(0)
    return AdaptiveEmbedding(40, 16, [10, 25], factor=2, padding_idx=12).double(), AdaptiveSoftmax(16, 2).double()


def test_embedding_is_a_lookup_in_the_bands(pair):
    embedding, _ = pair
    tables = [projection(band.weight) for band, projection in zip(embedding.bands, embedding.projections, strict=True)]
    ids = torch.randint(0, 40, (3, 7))
    torch.testing.assert_close(embedding(ids), F.embedding(ids, torch.cat(tables)))
    assert [tuple(band.weight.shape) for band in embedding.bands] == [(10, 16), (15, 8), (15, 4)]
    assert not embedding(torch.tensor([12])).any()  # the padding row is zero


def test_softmax_sums_to_one_and_equals_torchs_own(pair):
    embedding, softmax = pair
    hidden = torch.randn(2, 5, 16, dtype=torch.float64)
    ours = softmax.log_prob(hidden, embedding)
    torch.testing.assert_close(ours.exp().sum(-1), torch.ones(2, 5, dtype=torch.float64))
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 40, [10, 25], div_value=2).double()
    with torch.no_grad():
        first = embedding.bands[0].weight @ embedding.projections[0].weight.T
        theirs.head.weight.copy_(torch.cat((first, softmax.clusters.weight)))
        for i in (1, 2):
            theirs.tail[i - 1][0] = torch.nn.Linear(16, embedding.bands[i].weight.shape[1], bias=False).double()
            theirs.tail[i - 1][1] = torch.nn.Linear(embedding.bands[i].weight.shape[1], 15, bias=False).double()
            theirs.tail[i - 1][0].weight.copy_(embedding.projections[i].weight.T)
            theirs.tail[i - 1][1].weight.copy_(embedding.bands[i].weight)
    torch.testing.assert_close(ours, theirs.log_prob(hidden.flatten(0, 1)).view(2, 5, 40))


def test_loss_is_the_log_probability_of_the_targets(pair):
    embedding, softmax = pair
    hidden = torch.randn(2, 20, 16, dtype=torch.float64)
    targets = torch.arange(40).view(2, 20).clone()  # every word, the ends of the bands included
    targets[0, :3] = -100
    total, count = softmax.loss(hidden, targets, embedding)
    expected = F.nll_loss(softmax.log_prob(hidden, embedding).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(total, expected)
    assert count == 37


def test_language_model_with_bands(config, ids, tmp_path, relative):
    made = config(is_decoder=True, adaptive_cutoffs=[10, 30], hidden_dropout_prob=0.0)
    model = CosformerForCausalLM(made).eval()
    x = ids(2, 12)
    out = model(x)
    assert out.logits.shape == (2, 12, 50)
    loss = model(x, labels=x).loss
    expected = F.nll_loss(out.logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    divided = model(x, labels=x, num_items_in_batch=torch.tensor(11)).loss
    torch.testing.assert_close(divided, expected * 22 / 11)
    made_up = model.generate(x, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
    recomputed = model.generate(
        x, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None, use_cache=False
    )
    assert torch.equal(made_up, recomputed)
    model.save_pretrained(tmp_path)
    assert torch.equal(CosformerForCausalLM.from_pretrained(tmp_path)(x).logits, out.logits)


def test_dropout_acts_in_training_only(pair):
    embedding, _ = pair
    softmax = AdaptiveSoftmax(16, 2, dropout=0.5).double()
    hidden = torch.randn(4, 16, dtype=torch.float64)
    assert not torch.equal(softmax.log_prob(hidden, embedding), softmax.log_prob(hidden, embedding))
    softmax.eval()
    assert torch.equal(softmax.log_prob(hidden, embedding), softmax.log_prob(hidden, embedding))
