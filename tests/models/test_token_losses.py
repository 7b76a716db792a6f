"""The loss of single positions, targets that are given already shifted, and scores of masked places alone."""

from collections.abc import Callable

import pytest
import torch

from cosformer.models.causal_lm import CosformerForCausalLM
from cosformer.models.masked_lm import CosformerForMaskedLM

HEADS = pytest.mark.parametrize("cutoffs", [None, [10, 30]], ids=["plain", "adaptive"])


@HEADS
def test_losses_of_positions_are_those_of_the_whole_softmax(
    config: Callable, ids: Callable, cutoffs: list[int] | None
) -> None:
    model = CosformerForCausalLM(config(is_decoder=True, adaptive_cutoffs=cutoffs)).eval()
    x, targets = ids(3, 9), torch.randint(0, 50, (3, 9))
    targets[0, :4] = targets[2, 8] = -100
    with torch.no_grad():
        losses = model(x, shift_labels=targets, reduction="none").loss
        whole = model(x).logits.log_softmax(-1)
    for row in range(3):
        for place in range(9):
            target = int(targets[row, place])
            expected = 0.0 if target < 0 else -whole[row, place, target].item()
            assert losses[row, place].item() == pytest.approx(expected, abs=2e-5)


@HEADS
def test_shifted_targets_give_the_mean_and_its_gradient(
    config: Callable, ids: Callable, cutoffs: list[int] | None
) -> None:
    model = CosformerForCausalLM(config(is_decoder=True, adaptive_cutoffs=cutoffs, hidden_dropout_prob=0.0)).train()
    x = ids(2, 8)
    shifted = torch.cat((x[:, 1:], torch.full((2, 1), -100)), 1)
    results = []
    for given in ({"labels": x}, {"shift_labels": shifted}, {"labels": torch.zeros_like(x), "shift_labels": shifted}):
        model.zero_grad()
        loss = model(x, **given).loss
        loss.backward()
        results.append((loss.item(), model.get_input_embeddings().parameters().__next__().grad.clone()))
    for loss, gradient in results[1:]:
        assert loss == results[0][0] and torch.equal(gradient, results[0][1])
    last = shifted.clone()
    last[:, -1] = 7
    assert model(x, shift_labels=last).loss.item() != results[0][0], "the last position counts too"
    losses = model(x, shift_labels=last, reduction="none").loss
    assert losses.mean().item() == pytest.approx(model(x, shift_labels=last).loss.item(), rel=1e-6)
    divided = model(x, shift_labels=last, num_items_in_batch=torch.tensor(4)).loss
    assert divided.item() == pytest.approx(losses.sum().item() / 4, rel=1e-6)


def test_masked_places_alone_give_the_same_loss_and_gradient(config: Callable, ids: Callable) -> None:
    full = CosformerForMaskedLM(config(hidden_dropout_prob=0.0)).train()
    sparse = CosformerForMaskedLM(config(hidden_dropout_prob=0.0, sparse_prediction=True)).train()
    sparse.load_state_dict(full.state_dict())
    x, labels = ids(3, 9), torch.full((3, 9), -100)
    labels[0, 2], labels[0, 5], labels[2, 8] = 7, 11, 3
    for extra in ({}, {"num_items_in_batch": torch.tensor(5)}):
        results = []
        for model in (full, sparse):
            model.zero_grad()
            out = model(x, labels=labels, **extra)
            out.loss.backward()
            results.append((out, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}))
        (a, gradients), (b, others) = results
        assert a.logits.shape == (3, 9, 50) and b.logits is None
        torch.testing.assert_close(a.loss, b.loss)
        assert gradients.keys() == others.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, others[name], msg=name)
    assert torch.equal(sparse(x).logits, full(x).logits)


def test_losses_of_masked_places(config: Callable, ids: Callable) -> None:
    model = CosformerForMaskedLM(config()).eval()
    x, labels = ids(3, 9), torch.full((3, 9), -100)
    labels[0, 2], labels[0, 5], labels[2, 8] = 7, 11, 3
    with torch.no_grad():
        losses = model(x, labels=labels, reduction="none").loss
        whole = model(x).logits.log_softmax(-1)
    expected = torch.zeros(3, 9)
    for row, place in ((0, 2), (0, 5), (2, 8)):
        expected[row, place] = -whole[row, place, labels[row, place]]
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("kind", [CosformerForCausalLM, CosformerForMaskedLM])
def test_an_unknown_reduction_is_refused(config: Callable, ids: Callable, kind: type) -> None:
    model = kind(config(is_decoder=kind is CosformerForCausalLM))
    with pytest.raises(ValueError, match="reduction='sum'; known: mean, none"):
        model(ids(1, 4), labels=ids(1, 4), reduction="sum")
